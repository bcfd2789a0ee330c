"""From the operator benchmark's CSV to pictures and the table of crossovers.

python -m sparsefront.report.operators experiments/operators/h200.csv -o experiments/operators

Written are, for each dtype, roofline-<dtype>.png, winners-<dtype>.png and, where a weight was measured with many M,
sweep-<dtype>.png; and of all together crossover.md, crossover.csv and, where the time model predicted something,
predictions.png. The filters leave out measurements before anything is drawn.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsefront_kernels.problem import LAYOUTS

from sparsefront.report.operators.crossover import crossovers, write_csv, write_markdown
from sparsefront.report.operators.measurements import ELEMENT_BYTES, Filter, Results, by_dtype, read_measurements
from sparsefront.report.operators.prediction_plot import predictions, write_predictions_png
from sparsefront.report.operators.roofline_plot import write_roofline_png
from sparsefront.report.operators.sweep_plot import sweeps, write_sweeps_png
from sparsefront.report.operators.winner_map import write_winners_png


def main(arguments: Sequence[str]) -> int:
    """Write the files; returns the exit status: 0, or 1 with one message on stderr."""
    asked = _parser().parse_args(arguments)
    wanted = Filter(tuple(asked.dtype), tuple(asked.layout), tuple(asked.granularity), tuple(asked.m))
    try:
        results = read_measurements(asked.csv)
        shown = [one for one in results.measurements if wanted.passes(one)]
        if not shown:
            raise ValueError(f"{asked.csv} has no right product that passes the filters")
        asked.out.mkdir(parents=True, exist_ok=True)
        written = write_all(replace(results, measurements=shown), asked.out)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if results.left_out:
        print(f"left out: {results.left_out} rows whose product was wrong", file=sys.stderr)
    print("\n".join(str(path) for path in written))
    return 0


def write_all(results: Results, folder: Path) -> list[Path]:
    """Every picture and table that the measurements allow."""
    written = []
    for dtype, rows in by_dtype(results.measurements).items():
        written.append(write_roofline_png(rows, folder / f"roofline-{dtype}.png"))
        if any(one.weight.family != "dense" for one in rows):
            written.append(write_winners_png(rows, folder / f"winners-{dtype}.png"))
        if sweeps(rows):
            written.append(write_sweeps_png(rows, folder / f"sweep-{dtype}.png"))
    if predictions(results.measurements):
        written.append(write_predictions_png(results.measurements, folder / "predictions.png"))
    found = crossovers(results.measurements)
    written.append(write_markdown(found, results, folder / "crossover.md"))
    written.append(write_csv(found, folder / "crossover.csv"))
    return written


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront.report.operators",
        description="Draw what `python -m sparsefront_kernels.bench` measured: roofline, winning kernels, crossovers.",
    )
    parser.add_argument("csv", type=Path, help="what the benchmark wrote")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="where the files go")
    parser.add_argument("--dtype", nargs="+", default=[], choices=ELEMENT_BYTES, help="only these")
    parser.add_argument("--layout", nargs="+", default=[], choices=LAYOUTS, help="only these, of X and Y")
    parser.add_argument(
        "--granularity", nargs="+", default=[], type=int, help="only sparse weights of these granularities"
    )
    parser.add_argument("--m", nargs="+", default=[], type=int, help="only these M")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
