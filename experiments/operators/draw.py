"""Draw the operator benchmark's CSV as plots and tables of crossovers.

    python -m experiments.operators.draw [results.csv] [-o DIR]

Writes sweep-fp16.svg if a weight has many M, predictions.svg if the performance model made predictions, crossover.csv, and
kernels_by_m.csv if several kernels of a weight have many M; prints the table of crossovers in fp16. By default it reads h200.csv
and writes into the same folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.operators import crossover, kernels_by_m, plots
from experiments.operators.measurements import Results, read_measurements

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str]) -> int:
    """Write the files; returns the exit status: 0, or 1 with one message on stderr."""
    asked = _parser().parse_args(arguments)
    folder = asked.out or asked.csv.parent
    try:
        results = read_measurements(asked.csv)
        folder.mkdir(parents=True, exist_ok=True)
        written = write_all(results, folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if results.left_out:
        print(f"left out: {results.left_out} rows whose product was wrong", file=sys.stderr)
    print("\n".join(str(path) for path in written))
    return 0


def write_all(results: Results, folder: Path) -> list[Path]:
    """Write every figure and table that the measurements allow, and print the table of crossovers."""
    half = [one for one in results.measurements if one.dtype == "fp16"]
    figures = [
        plots.draw_sweeps(half, folder / "sweep-fp16.svg"),
        plots.draw_predictions(results.measurements, folder / "predictions.svg"),
    ]
    crossovers = crossover.crossovers(results.measurements)
    tables = [crossover.write_csv(crossovers, folder / "crossover.csv")]
    print(*crossover.markdown(crossovers, "fp16"), sep="\n")
    by_m = kernels_by_m.times_by_m(results.measurements)
    if by_m:
        tables.append(kernels_by_m.write_by_m_csv(by_m, folder / "kernels_by_m.csv"))
    return [*filter(None, figures), *tables]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Draw what `python -m sparsefront_kernels.bench` measured: speedups by M, crossovers."
    )
    parser.add_argument("csv", type=Path, nargs="?", default=HERE / "h200.csv", help="what the benchmark wrote")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="where the files go; beside the CSV by default")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
