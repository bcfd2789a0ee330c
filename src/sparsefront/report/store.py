"""Results on disk: `row.json` of each run, and one CSV file that many runs append to."""

import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import held_alone
from sparsefront.report.result import Result
from sparsefront.tasks.outcomes import Outcomes, load_outcomes

log = logging.getLogger(__name__)
RESULT_FILE = "row.json"
STORE_FILE = "rows.csv"
FRONT_FILE = (
    ".front.txt"  # ends the name of a search's list: the folders of the runs that no other run beats, a line each
)
# A line torn inside a character must not stop the repair: bytes that are no UTF-8 pass through unchanged.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
# One cell holds the kernels of all layers as JSON; the csv module's own limit is 128 KiB.
csv.field_size_limit(2**31 - 1)


def write_result_json(path: Path, result: Result) -> Path:
    """Write the result to `path`, whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, result.to_json())
    return path


def append_result(store_csv: Path, result: Result) -> None:
    """Add the result to the store; safe with many writers. One line per `run_id`: the newest replaces an older one.

    The common case appends one line in one write. The file is rewritten, atomically, when the result brings a column that
    it lacks, when its run is already there, or when a killed writer left half a line at the end (dropped, with a
    warning: that run's row.json still has it).
    """
    store_csv.parent.mkdir(parents=True, exist_ok=True)
    with held_alone(store_csv):
        text = store_csv.read_text(**TEXT) if store_csv.exists() else ""
        whole = _whole_lines(text)
        if whole != text:
            log.warning("%s ended in half a line, left by a killed run: it was dropped", store_csv)
        header, lines = _parse(whole)
        cells = {name: "" if value is None else value for name, value in result.flat().items()}
        known = [line for line in lines if line.get("run_id") != result.identity.run_id]
        missing_columns = [name for name in cells if name not in header]
        if whole == text and header and not missing_columns and len(known) == len(lines):
            with store_csv.open("a", newline="", **TEXT) as file:
                file.write(_format(header, [cells], with_header=False))
        else:
            header = [*header, *missing_columns]
            _replace(store_csv, _format(header, [*known, cells], with_header=True))


@dataclass
class Reading:
    """What was found: results without exact duplicates, and what could not be read, each with its reason.

    `folders`: run_id -> the folder of its row.json, where the files that a result names lie.
    """

    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    folders: dict[str, Path] = field(default_factory=dict)

    def folder_of(self, result: Result) -> Path | None:
        """Where the files of a result lie; None where it was read from a table."""
        return self.folders.get(result.identity.run_id)

    def outcomes_of(self, result: Result) -> dict[str, Outcomes] | None:
        """What each sample added to the metric, of each of a result's networks; None where that is not at hand."""
        folder, file = self.folders.get(result.identity.run_id), result.quality.outcomes_file
        if folder is None or file is None:
            return None
        try:
            return load_outcomes(folder / Path(file).name)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None


def read_results(paths: Iterable[Path]) -> Reading:
    """Results of folders, of CSV files and of single JSON files.

    In a folder every `row.json` at any depth is read; where there is none, every `rows.csv`. A file that cannot be read
    is a problem in the result, never an exception. A result met twice counts once.
    """
    reading = Reading()
    seen: set[str] = set()
    for path in paths:
        if not path.exists():
            reading.problems.append(f"{path}: no such file or folder")
        for file in _row_files(path):
            for result in _read_file(file, reading.problems):
                if file.suffix != ".csv":
                    reading.folders[result.identity.run_id] = file.parent
                if (text := result.to_json()) not in seen:
                    seen.add(text)
                    reading.results.append(result)
    return reading


def _row_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if path.exists() else []
    return sorted(path.rglob(RESULT_FILE)) or sorted(path.rglob(STORE_FILE))


def _read_file(file: Path, problems: list[str]) -> Iterator[Result]:
    try:
        text = file.read_text(**TEXT)
        if file.suffix != ".csv":
            yield Result.from_json(text)
            return
    except json.JSONDecodeError as error:
        problems.append(f"{file}: not JSON ({error})")
        return
    except (OSError, ValueError) as error:
        problems.append(f"{file}: {error}")
        return
    whole = _whole_lines(text)
    if whole != text:
        problems.append(f"{file}: ends in half a line, left out")
    for number, cells in enumerate(_parse(whole)[1], start=1):
        try:
            yield Result.from_flat(cells)
        except ValueError as error:
            problems.append(f"{file}, result {number}: {error}")


def _whole_lines(text: str) -> str:
    """The text up to its last line end that is not inside quotes."""
    while text and (not text.endswith("\n") or text.count('"') % 2):
        text = text[: text.rfind("\n", 0, len(text) - 1) + 1]
    return text


def _parse(text: str) -> tuple[list[str], list[dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", restkey="")
    return list(reader.fieldnames or []), list(reader)


def _format(header: list[str], lines: list[dict], *, with_header: bool) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, header, restval="", extrasaction="ignore", lineterminator="\n")
    if with_header:
        writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    """A reader or a kill sees the old file or the new one, never half."""
    with whole_file(path) as new, new.open("w", newline="", **TEXT) as file:
        file.write(text)
