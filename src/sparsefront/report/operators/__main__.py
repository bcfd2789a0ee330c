"""From the operator benchmark's CSV to roofline.png, winners.png, crossover.md and crossover.csv.

python -m sparsefront.report.operators experiments/operators/h200.csv -o experiments/operators
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefront.report.operators.crossover import crossovers, write_csv, write_markdown
from sparsefront.report.operators.measurements import read_measurements
from sparsefront.report.operators.roofline_plot import write_roofline_png
from sparsefront.report.operators.winner_map import write_winners_png


def main(arguments: Sequence[str]) -> int:
    """Write the four files; returns the exit status: 0, or 1 with one message on stderr."""
    asked = _parser().parse_args(arguments)
    try:
        results = read_measurements(asked.csv)
        asked.out.mkdir(parents=True, exist_ok=True)
        found = crossovers(results.measurements)
        written = [
            write_roofline_png(results.measurements, asked.out / "roofline.png"),
            write_winners_png(results.measurements, asked.out / "winners.png"),
            write_markdown(found, results, asked.out / "crossover.md"),
            write_csv(found, asked.out / "crossover.csv"),
        ]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if results.left_out:
        print(f"left out: {results.left_out} rows whose product was wrong", file=sys.stderr)
    print("\n".join(str(path) for path in written))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront.report.operators",
        description="Draw what `python -m sparsefront_kernels.bench` measured: roofline, winning kernels, crossovers.",
    )
    parser.add_argument("csv", type=Path, help="what the benchmark wrote")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="where the four files go")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
