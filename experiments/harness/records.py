"""Pack the runs behind a study's published rows, so that each number can be compared, recomputed and made again.

    python -m experiments.harness.records recoveries results/experiments/recoveries --rows experiments/recoveries/points.csv

A packed record holds the run's row.json, what each sample added to the metrics (outcomes.npz), its overrides without places
of this machine, and its latencies (samples.json) where these are small: `compare.py experiments/records` reads them like
folders of runs, `verify --retrain` makes their weights again. Equal runs give equal bytes, and a record that holds a run already
is left alone. With --rows a record is packed of each row, and the row must state what its record does.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from experiments.harness.runs import ROOT
from sparsefront.artifacts.bounded_files import MOST_YAML_BYTES, Unreadable, read_bytes_bounded
from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import InvalidSetting, printable
from sparsefront.options import shortened
from sparsefront.progress import counted
from sparsefront.results.packed import (
    MEMBERS,
    NAME,
    OUTCOMES,
    OVERRIDES,
    RECORD,
    SAMPLES,
    SUFFIX,
    is_packed,
    pack,
    unpacked,
)
from sparsefront.results.record import Result
from sparsefront.results.run_folder import recorded_overrides
from sparsefront.results.store import read_lines, read_results
from sparsefront.runs import LEFT_OUT, PATHS
from sparsefront.verify.stored import check_numbers, read_record

RECORDS = ROOT / "experiments" / "records"
MOST_LATENCY_BYTES = 64 * 2**10  # of samples.json as it is packed; without it the record states the latencies alone
CLOSE = 1e-5  # relative: rows state six digits
FEWEST_DIGITS = 6  # of a digest that a row states the beginning of
OF_THE_POINT = ("seed",)  # columns of a study's own: which repeat of a point it is, be it of the recovery alone


def write_records(
    study: str, folders: Iterable[Path], *, rows: Path | None = None, out: Path = RECORDS
) -> tuple[list[Path], list[str]]:
    """Pack finished runs into a folder of the study, one file for each.

    Args:
        folders: of results.
        rows: the published rows, which name their runs in column run_id; None: all runs.
    Returns:
        the records, and why a run or a row has none, a line each.
    Raises:
        ValueError: there are none, the rows cannot be read, or none names its run.
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
        # a run that was measured again has several results, of which one is the row's
        differences = [None if row is None else difference(row, result) for result, _ in found]
        if None not in differences:
            problems.append(f"run {run}: {differences[0]}")
            continue
        try:
            written.append(write_record(found[differences.index(None)][1], out / study))
        except ValueError as error:
            problems.append(str(error))
    return written, problems


def write_record(place: Path, folder: Path) -> Path:
    """Pack one finished run.

    Args:
        place: the run's folder.
        folder: of the study's records; made where it is missing.
    Returns:
        the record's file.
    Raises:
        ValueError: a file of the run is missing, was edited, or is larger than a record may be; names it.
    """
    members = unpacked(place) if is_packed(place) else members_of(place)
    run = Result.from_json(members[RECORD].decode()).identity.run_id
    if not NAME.fullmatch(run):
        raise InvalidSetting("run_id", run, f"names no file; {place} has it")
    file = folder / f"{run}{SUFFIX}"
    if not (file.exists() and unpacked(file) == members):  # another version of zlib gives other bytes of equal content
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as new:
            new.write_bytes(pack(members))
    return file


def members_of(folder: Path) -> dict[str, bytes]:
    """What a record holds of a run's folder. Raises ValueError as `write_record`."""
    result = read_record(folder / RECORD)
    check_numbers(result, folder / RECORD)
    members = {}
    for name in (RECORD, OUTCOMES, SAMPLES):
        try:
            members[name] = read_bytes_bounded(folder / name, max_bytes=MEMBERS[name])
        except Unreadable as error:
            if name != SAMPLES:
                raise ValueError(f"{folder / name}: {error}") from None
    if SAMPLES in members and len(pack({SAMPLES: members[SAMPLES]})) > MOST_LATENCY_BYTES:
        del members[SAMPLES]
    overrides = recorded_overrides(folder)
    if overrides is None:
        raise ValueError(f"{folder / OVERRIDES}: is missing, and nothing else tells how to make the network again")
    text = yaml.safe_dump(list(_without_machine(overrides)), allow_unicode=True, width=math.inf)
    members[OVERRIDES] = text.encode()
    if len(members[OVERRIDES]) > MOST_YAML_BYTES:
        raise ValueError(f"{folder / OVERRIDES}: is larger than the {MOST_YAML_BYTES} bytes that are read")
    return members


def _without_machine(overrides: Iterable[str]) -> Iterator[str]:
    """Without where a run kept and logged what, and of a path its last part: what the record itself tells of one."""
    for text in overrides:
        key, _, value = text.partition("=")
        plain = key.lstrip("+~")
        if plain.replace("/", ".").partition(".")[0] in LEFT_OUT:
            continue
        yield f"{key}={Path(value.strip(chr(34) + chr(39))).name}" if plain in PATHS else text


def rows_by_run(rows: Path) -> dict[str, Mapping[str, str]]:
    """run_id -> its row; rows of what was not run, such as unsupported points, name none."""
    lines = read_lines(rows)
    return {line["run_id"]: line for line in lines if line.get("run_id")}


def difference(row: Mapping[str, str], result: Result) -> str | None:
    """In words, the first cell of a row that its record states otherwise; None where there is none.

    Columns with the name of a field are compared: numbers up to their sixth digit, digests and commits as far as the row tells
    them. An empty cell states nothing, nor does a mapping in words.
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
