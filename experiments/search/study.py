"""A pattern and a sparsity for each layer, searched for a latency, beside single patterns for the whole network.

    python -m experiments.search.study --workers 6 --overrides experiment=bert_sst2 model.path=DIR dataset.path=DIR

--overrides are those of `run.py`, for all points, such as measure.batch_size=128. Every point trains its recovery, beside
the dense network trained on for the same budget. Processes share the GPU: the dense network of each seed comes first, and
the first search of a seed before its others, which take its times. A line is added to --out as soon as its point is
finished, so that a killed study goes on where it was; lines of other --overrides, and those of searches among other
--candidates or below another --ceiling, are no points of it, and need another file.
A search that is out of reach is named and left out. `--until export` trains and times nothing but what a search asks for, and
writes no line: the call without it finds all trainings stored.
`draw.py` draws the fronts, `summary.py` makes the page's table.
"""

import argparse
import functools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from experiments.search import points
from experiments.search.points import DENSE, SEARCH, Point
from sparsefront.processes import side_by_side, worker_processes
from sparsefront.results.store import append_line, read_lines

HERE = Path(__file__).resolve().parent


def wanted(
    singles: Sequence[str], sparsities: Sequence[float], speedups: Sequence[float], seeds: Sequence[int]
) -> list[Point]:
    """Seed after seed, so that what is there at any time is a whole study of fewer seeds."""
    found = []
    for seed in seeds:
        found += [Point(SEARCH, speedup, seed) for speedup in speedups]
        found += [Point(single, sparsity, seed) for single in singles for sparsity in sparsities]
    return found


def order(todo: Sequence[Point]) -> dict[Point, Point]:
    """Point -> the one that it waits for: the dense network of its seed, or the first search of that seed."""
    after: dict[Point, Point] = {}
    first: dict[int, Point] = {}
    for point in todo:
        dense = Point(DENSE, 0.0, point.seed)
        after[point] = first.setdefault(point.seed, point) if point.choice == SEARCH else dense
    return after | {point: Point(DENSE, 0.0, point.seed) for point in first.values()}


def finish(
    todo: Sequence[Point], pool: Executor, arguments: argparse.Namespace, ends_at: float = float("inf")
) -> list[Point]:
    """Run the points, write their lines, and return those that are left for the next call."""
    candidates = candidates_of(arguments)
    after = order(todo)
    jobs = [*dict.fromkeys(Point(DENSE, 0.0, point.seed) for point in todo), *todo]
    work = functools.partial(
        points.finish,
        candidates=candidates,
        ceiling=arguments.ceiling,
        overrides=arguments.overrides,
        until=arguments.until,
    )
    left = list(todo)
    for done in side_by_side(jobs, work, pool, workers=arguments.workers, after=after, ends_at=ends_at):
        if done.error is not None:
            print(f"{done.job} failed: {type(done.error).__name__}: {done.error}", flush=True)
            continue
        if done.job.choice == DENSE:
            continue
        left.remove(done.job)
        if isinstance(done.found, str):
            print(f"{done.job} is left out: {done.found}", flush=True)
            continue
        if done.found is None:
            print(f"{done.job}: stored up to {arguments.until}", flush=True)
            continue
        append_line(arguments.out, done.found)
        print(f"{done.job}: {points.told(done.found)}", flush=True)
    return left


def candidates_of(arguments: argparse.Namespace) -> list[str]:
    """The search's patterns: the single ones where none are named."""
    return arguments.candidates or arguments.singles


def require_same_settings(path: Path, lines: Sequence[Mapping[str, str]], arguments: argparse.Namespace) -> None:
    """Raises SystemExit where lines were measured with other overrides, or their searches with others: they are no points of this
    study.
    """
    candidates = candidates_of(arguments)
    for line in lines:
        ours = points.settings_of(line["choice"], candidates, arguments.ceiling, arguments.overrides)
        if (theirs := line.get(points.OVERRIDES)) != ours:
            whose = "those of searches" if line["choice"] == SEARCH else "its lines"
            told = (
                "do not say with which --overrides they were measured"
                if theirs is None
                else f"are of {theirs or 'none'}"
            )
            raise SystemExit(f"--out {path}: {whose} {told}, not of {ours or 'none'}: name another file")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "rows.csv")
    parser.add_argument("--singles", nargs="*", default=["tile_wise:128", "n_m", "block_wise:64", "vector_wise:32"])
    parser.add_argument("--candidates", nargs="+", help="of the search; the single patterns where none are named")
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.5, 0.75, 0.875, 0.9375])
    parser.add_argument("--speedups", type=float, nargs="*", default=[1.25, 1.5, 2.0, 2.5, 3.0])
    parser.add_argument("--ceiling", type=float, default=0.95, help="on the sparsity of a layer in the search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--until", choices=["prune", "export"], help="the last stage; nothing is measured")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")
    parser.add_argument("--overrides", nargs="*", default=[], help="of run.py, for all points: measure.batch_size=128")
    arguments = parser.parse_args()
    ends_at = time.monotonic() + 60 * arguments.minutes
    points_wanted = wanted(arguments.singles, arguments.sparsities, arguments.speedups, arguments.seeds)
    lines = read_lines(arguments.out)
    require_same_settings(arguments.out, lines, arguments)
    todo = points.unfinished(points_wanted, lines)
    with worker_processes(arguments.workers) as pool:
        if left := finish(todo, pool, arguments, ends_at):
            print(f"{len(left)} points are left for the next call", flush=True)


if __name__ == "__main__":
    main()
