"""A pattern and a sparsity for each layer, searched for a latency, beside single patterns for the whole network.

    python experiments/search/study.py --overrides experiment=bert_sst2 model.path=DIR dataset.path=DIR measure.batch_size=128

--overrides are those of `run.py`, for all points. Every point trains its recovery, beside the dense network trained on for the
same budget. A line is added to --out as soon as its point is finished, so that a killed study goes on where it was; a search that
is out of reach is named and left out. `draw.py` draws the fronts, `summary.py` makes the table of the page.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import points  # beside this file
from points import SEARCH, Point

from sparsefront.artifacts.csv_lines import append_line, read_lines
from sparsefront.errors import InvalidSetting
from sparsefront.runs import run

HERE = Path(__file__).resolve().parent


def wanted(
    singles: Sequence[str], sparsities: Sequence[float], speedups: Sequence[float], seeds: Sequence[int]
) -> list[Point]:
    """Seed after seed, so that what is there at any time is a whole study of fewer seeds."""
    found = []
    for seed in seeds:
        found += [Point(single, sparsity, seed) for single in singles for sparsity in sparsities]
        found += [Point(SEARCH, speedup, seed) for speedup in speedups]
    return found


def finish(todo: Sequence[Point], arguments: argparse.Namespace) -> None:
    """Run the points and write their lines."""
    candidates = arguments.candidates or arguments.singles
    for number, point in enumerate(todo, 1):
        print(f"{number} of {len(todo)}: {point}", flush=True)
        try:
            # first those of the point: a user's own settle what both name
            record = run(*point.overrides(candidates, arguments.ceiling), *arguments.overrides).record
        except InvalidSetting as error:
            print(f"left out: {error}", flush=True)
            continue
        append_line(arguments.out, points.line(point, record))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "rows.csv")
    parser.add_argument("--singles", nargs="+", default=["tile_wise:128", "n_m", "block_wise:64", "vector_wise:32"])
    parser.add_argument("--candidates", nargs="+", help="of the search; the single patterns where none are named")
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.5, 0.75, 0.875, 0.9375])
    parser.add_argument("--speedups", type=float, nargs="+", default=[1.25, 1.5, 2.0, 2.5, 3.0])
    parser.add_argument("--ceiling", type=float, default=0.95, help="on the sparsity of a layer in the search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--overrides", nargs="*", default=[], help="of run.py, for all points: measure.batch_size=128")
    arguments = parser.parse_args()
    points_wanted = wanted(arguments.singles, arguments.sparsities, arguments.speedups, arguments.seeds)
    finish(points.unfinished(points_wanted, read_lines(arguments.out)), arguments)


if __name__ == "__main__":
    main()
