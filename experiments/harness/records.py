"""Pack the runs behind a study's published rows, so that every number can be compared, recomputed and reproduced.

    python -m experiments.harness.records recoveries results/experiments/recoveries --rows experiments/recoveries/points.csv

A packed record holds the run's row.json, per-sample outcomes (outcomes.npz), overrides without local paths and, if small,
latency samples (samples.json). `compare.py experiments/records` reads records like run folders; `verify --retrain`
reproduces their weights. Equal runs give equal bytes, and an existing record of a run is kept. --rows packs only the runs of
these rows, and checks that each row agrees with its record.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.harness.runs import ROOT
from sparsefront.errors import printable
from sparsefront.options import shortened
from sparsefront.progress import counted
from sparsefront.results.record import Result
from sparsefront.results.store import read_lines, read_results
from sparsefront.verify.packing import write_record

RECORDS = ROOT / "experiments" / "records"
CLOSE = 1e-5  # relative tolerance: rows have six digits
FEWEST_DIGITS = 6  # of a digest that a row abbreviates
OF_THE_POINT = ("seed",)  # columns of the study itself: the repeat of a point, possibly of its recovery only


def write_records(
    study: str, folders: Iterable[Path], *, rows: Path | None = None, out: Path = RECORDS
) -> tuple[list[Path], list[str]]:
    """Pack finished runs into the study's folder, one file per run.

    Args:
        folders: result folders.
        rows: published rows, which name their runs in column run_id; None: all runs.
    Returns:
        the records, and one line per run or row without a record, with the reason.
    Raises:
        ValueError: there are no runs, the rows cannot be read, or no row names its run.
    """
    reading = read_results(folders)
    wanted = dict.fromkeys(reading.places) if rows is None else rows_by_run(rows)
    if not wanted and not reading.problems:
        raise ValueError(f"{rows or ', '.join(map(str, folders))}: names no run")
    written, problems = [], list(reading.problems)
    for run, row in wanted.items():
        found = reading.places.get(run, [])
        if not found:
            problems.append(f"run {run}: none below {', '.join(map(str, folders))}")
            continue
        # a remeasured run has several results; the row belongs to one of them
        differences = [None if row is None else difference(row, result) for result, _ in found]
        if None not in differences:
            problems.append(f"run {run}: {differences[0]}")
            continue
        try:
            written.append(write_record(found[differences.index(None)][1], out / study))
        except ValueError as error:
            problems.append(str(error))
    return written, problems


def rows_by_run(rows: Path) -> dict[str, Mapping[str, str]]:
    """run_id -> its row; rows without a run, such as unsupported points, are skipped."""
    lines = read_lines(rows)
    return {line["run_id"]: line for line in lines if line.get("run_id")}


def difference(row: Mapping[str, str], result: Result) -> str | None:
    """Describe the first cell of a row that differs from its record; None if there is none.

    Compares columns named like a field: numbers to six digits, digests and commits to the digits in the row. Empty cells and
    mappings written as text are not compared.
    """
    for name, value in result.flat().items():
        cell = row.get(name, "")
        if cell and name not in OF_THE_POINT and not _same(name, cell, value):
            return f"the row states {name}={shortened(cell)}, its record {shortened(value)}"
    return None


def _same(name: str, cell: str, value: object) -> bool:
    text = "" if value is None else str(value)
    if text[:1] in ("{", "["):
        return cell[:1] != text[:1] or cell == text
    if name == "commit" or name.endswith("sha256"):
        return len(cell) >= FEWEST_DIGITS and text.startswith(cell)
    try:
        return math.isclose(float(cell), float(text), rel_tol=CLOSE)
    except ValueError:
        return cell == text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="name of the folder of its records")
    parser.add_argument("results", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="the published rows: a record for each, no others")
    parser.add_argument("--out", type=Path, default=RECORDS, help="of the studies' records")
    arguments = parser.parse_args()
    try:
        written, problems = write_records(arguments.study, arguments.results, rows=arguments.rows, out=arguments.out)
    except ValueError as error:
        print(printable(error), file=sys.stderr)
        return 1
    for problem in problems:
        print(printable(f"left out: {problem}"), file=sys.stderr)
    size = sum(file.stat().st_size for file in written)
    print(f"{arguments.out / arguments.study}: {counted(len(written), 'record')}, {size} bytes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
