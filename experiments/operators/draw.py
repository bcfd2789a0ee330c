"""Draw the operator benchmark's CSV as plots and tables of crossovers.

    python -m experiments.operators.draw [results.csv] [-o DIR] [--merge later.csv ...]

Writes per dtype roofline-<dtype>.png, winners-<dtype>-<family>.png for each kernel family and, if a weight has many M,
sweep-<dtype>.png. Writes for all dtypes together crossover.csv, crossover.png, predictions.png if the performance model made
predictions, and kernels_by_m.csv and .png if several kernels of a weight have many M. By default it draws h200.csv, into the same
folder. --merge first replaces rows of the CSV by those of later files with the same product, kernel and layout, and appends new
ones.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefront_kernels.bench.rows import read_rows, write_texts

from experiments.operators import crossover, winners
from experiments.operators.measurements import Results, by_dtype, merged, read_measurements
from experiments.operators.plots import predictions, sweeps, write_predictions_png, write_roofline_png, write_sweeps_png

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str]) -> int:
    """Write the files; returns the exit status: 0, or 1 with one message on stderr."""
    asked = _parser().parse_args(arguments)
    folder = asked.out or asked.csv.parent
    try:
        if asked.merge:
            _merge(asked.csv, asked.merge)
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
    """Write every plot and table that the measurements allow."""
    written = []
    for dtype, rows in by_dtype(results.measurements).items():
        written.append(write_roofline_png(rows, folder / f"roofline-{dtype}.png"))
        for family in sorted({one.weight.family for one in rows} - {"dense"}):
            own = [one for one in rows if one.weight.family == family]
            written.append(winners.write_winners_png(own, folder / f"winners-{dtype}-{family}.png"))
        if sweeps(rows):
            written.append(write_sweeps_png(rows, folder / f"sweep-{dtype}.png"))
    if predictions(results.measurements):
        written.append(write_predictions_png(results.measurements, folder / "predictions.png"))
    found = crossover.crossovers(results.measurements)
    written.append(crossover.write_csv(found, folder / "crossover.csv"))
    if crossover.drawn(found):
        written.append(crossover.write_png(found, folder / "crossover.png"))
    if by_m := winners.times_by_m(results.measurements):
        written.append(winners.write_by_m_csv(by_m, folder / "kernels_by_m.csv"))
        written.append(winners.write_by_m_png(by_m, folder / "kernels_by_m.png"))
    return written


def _merge(csv: Path, files: Sequence[Path]) -> None:
    """Update a CSV with later results of the benchmark, the newest file last."""
    before, later = read_rows(csv), [row for path in files for row in read_rows(path)]
    after = merged(before, later)
    write_texts(csv, after)
    print(f"{csv}: {len(before)} rows before, {len(later)} measured since, {len(after)} now")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Draw what `python -m sparsefront_kernels.bench` measured: roofline, winning kernels, crossovers."
    )
    parser.add_argument("csv", type=Path, nargs="?", default=HERE / "h200.csv", help="what the benchmark wrote")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="where the files go; beside the CSV by default")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="CSV", help="later measurements, the newest last")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
