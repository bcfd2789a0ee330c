"""Results on disk: `row.json` of each run, and one CSV file that many runs append to."""

import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from sparsefront.artifacts.access import unreadable
from sparsefront.artifacts.bounded_files import Unreadable, read_text_bounded
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.artifacts.csv_lines import TEXT, read_table_text, separator_of
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import Lease, do_alone
from sparsefront.artifacts.record_digest import record_digest
from sparsefront.artifacts.walk import below_with_links
from sparsefront.errors import Obstacle
from sparsefront.printable import printable
from sparsefront.report.csv_text import escaped, format_lines, parse_lines, whole_lines
from sparsefront.report.rank import rank, rank_of_line
from sparsefront.report.result import Result, missing_columns
from sparsefront.run_folder import FAILURE_FILE, LINK
from sparsefront.tasks.outcomes import Outcomes, load_outcomes
from sparsefront.worker_processes import end_with_parent

log = logging.getLogger(__name__)
RESULT_FILE = "row.json"
STORE_FILE = "rows.csv"
ANOTHER_FOLDER = "compare folders that you may read"
FILES_FOR_PROCESSES = 2000  # fewer are read before a process has started
NO_RESULTS = f"holds no results; take a folder of results, its {STORE_FILE}, or the {RESULT_FILE} of a run"
NO_TABLE = "no table of results"
# Ends the name of a search's list: the folders of the runs that no other run beats, a line each; "#" starts a line about them.
FRONT_FILE = ".front.txt"


def write_result_json(path: Path, result: Result) -> Path:
    """Write the result to `path`, whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, result.to_json())
    return path


def append_result(store_csv: Path, result: Result) -> None:
    """Add the result to the store; safe with many writers. One line per `run_id`: that of the higher `rank` stays.

    The common case appends one line in one write, and parses nothing but the header. The file is rewritten, atomically, when
    the result brings a column that it lacks, when its run is already there, when a spreadsheet saved it in a form of its own, or
    when a killed writer left half a line at the end (dropped, with a warning: that run's row.json still has it).

    Raises:
        Obstacle: the file is no table of results; it stays as it is.
    """
    store_csv.parent.mkdir(parents=True, exist_ok=True)

    def append(lease: Lease) -> None:
        _put(store_csv, result, lease)
        lease.require()  # one that slept may have written to a file that was replaced

    do_alone(store_csv, append)


def _put(store_csv: Path, result: Result, lease: Lease) -> None:
    cells = {name: "" if value is None else value for name, value in result.flat().items()}
    if (header := _header_of_a_store_without(store_csv, result.identity.run_id)) and not cells.keys() - set(header):
        lease.require()
        _append(store_csv, header, cells)
        return
    text, header, lines = _parts_of(store_csv)
    whole = whole_lines(text)
    if whole != text:
        log.warning("%s ended in half a line, left by a killed run: it was dropped", store_csv)
    own = [line for line in lines if line.get("run_id") == result.identity.run_id]
    if any(rank_of_line(line) > rank(result) for line in own):
        if whole != text:
            _replace(store_csv, format_lines(header, lines, with_header=True), lease)
        return
    known = [line for line in lines if line.get("run_id") != result.identity.run_id]
    header = [*header, *(name for name in cells if name not in header)]
    _replace(store_csv, format_lines(header, [*known, cells], with_header=True), lease)


def _parts_of(store_csv: Path) -> tuple[str, list[str], list[dict[str, str]]]:
    """Text, columns and whole lines of a store; none where there is no file. Raises Obstacle where it is no table of results."""
    if not os.path.lexists(store_csv):
        return "", [], []
    try:
        text = read_table_text(store_csv)
        header, lines = parse_lines(whole_lines(text))
        if text and (missing := missing_columns(header)):
            raise Unreadable(_no_table(missing))
    except Unreadable as error:
        remedy = f"move it away; python compare.py --rebuild {store_csv.parent} makes it anew from each {RESULT_FILE}"
        raise Obstacle(str(store_csv), None, f"{error}; {remedy}") from None
    return text, header, lines


def _append(store_csv: Path, header: list[str], cells: dict) -> None:
    with store_csv.open("a", newline="", **TEXT) as file:
        file.write(format_lines(header, [cells], with_header=False))


def _header_of_a_store_without(store_csv: Path, run_id: str) -> list[str] | None:
    """The columns, where it is sure at a glance that every line is whole and none is of this run; None where it is not."""
    if not store_csv.is_file():
        return None
    content = store_csv.read_bytes()
    first = content[: content.find(b"\n") + 1].decode(**TEXT)
    header = parse_lines(first)[0] if separator_of(first) == "," else []
    whole = content.endswith(b"\n") and content.count(b'"') % 2 == 0
    plain = run_id.isascii() and not set(run_id) & set('",\r\n') and escaped(run_id) == run_id
    if not (header[:1] == ["run_id"] and whole and plain) or f"\n{run_id},".encode() in content:
        return None
    return header


@dataclass
class Reading:
    """What was found: results without exact duplicates, and what could not be read, each with its reason.

    `places`: run_id -> its results, each with the folder of a row.json that holds it, where the files that it names lie.
    `failures`: the files of runs that ended without a result.
    """

    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    places: dict[str, list[tuple[Result, Path]]] = field(default_factory=dict)
    failures: list[Path] = field(default_factory=list)
    _told: set[Path] = field(default_factory=set)

    def folder_of(self, result: Result) -> Path | None:
        """Where the files of a result lie, of several folders the first with its outcomes; None of one from a table."""
        found = [folder for one, folder in self.places.get(result.identity.run_id, ()) if one == result]
        if len(found) < 2 or (file := result.quality.outcomes_file) is None:
            return found[0] if found else None
        return next((folder for folder in found if (folder / Path(file).name).is_file()), found[0])

    @property
    def finished(self) -> list[Path]:
        """The folders of all runs that have a result."""
        return [folder for found in self.places.values() for _, folder in found]

    def outcomes_of(self, result: Result) -> dict[str, Outcomes] | None:
        """What each sample added to the metric, of each of a result's networks; None where that is not at hand, was edited, or
        cannot be read, of which a line is logged.
        """
        folder, file = self.folder_of(result), result.quality.outcomes_file
        if folder is None or file is None:
            return None
        path, stored = folder / Path(file).name, result.identity.outcomes_sha256
        if not os.path.lexists(path):
            return None
        try:
            if stored is not None and file_digest(path) != stored:
                raise Unreadable("is not the file that was stored: its sha256 differs")
            found = load_outcomes(path, samples=result.quality.evaluated_samples)
            for outcomes in found.values():
                outcomes.require_metric()
            return found
        except (OSError, ValueError) as error:
            if path not in self._told:
                self._told.add(path)
                log.warning("%s", printable(f"{path}: {error}; the run is shown without a comparison by samples"))
            return None


def read_results(paths: Iterable[Path], *, processes: int = 1) -> Reading:
    """Results of folders, of CSV files and of single JSON files.

    In a folder every `row.json` at any depth is read, in linked folders too; where there is none, every `rows.csv`. A file
    that cannot be read, and a result that was edited after it was stored, is a problem in the result, never an exception. A
    result met twice counts once.

    Args:
        processes: that read a large store together; they are forked, so more than one needs a program without threads.
    """
    reading = Reading()
    seen: dict[str, list[Result]] = {}
    for path in paths:
        if not path.exists():
            reading.problems.append(f"{path}: no such file or folder")
        reading.problems += [f"{link}: a link that leads nowhere" for link in _dead_links(path)]
        files, failures, closed = _files_of_runs(path)
        reading.failures += failures
        reading.problems += [str(unreadable(folder, otherwise=ANOTHER_FOLDER)) for folder in closed]
        for file, results, problems in _read_files(files, processes):
            reading.problems += problems
            for result in results:
                of_this_run = seen.setdefault(result.identity.run_id, [])
                if result not in of_this_run:
                    of_this_run.append(result)
                    reading.results.append(result)
                if file.suffix != ".csv":
                    reading.places.setdefault(result.identity.run_id, []).append((result, file.parent))
    return reading


def _files_of_runs(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The files with results, those of failures, and folders that may not be read, at any depth and in linked folders; walked
    once, several times as fast as `rglob`.
    """
    if not path.is_dir():
        return [path] if path.exists() else [], [], []
    closed: list[Path] = []
    found: dict[str, list[Path]] = {RESULT_FILE: [], STORE_FILE: [], FAILURE_FILE: []}
    for file in below_with_links(path, found, but=LINK, closed=closed.append):
        found[file.name].append(file)
    return sorted(found[RESULT_FILE]) or sorted(found[STORE_FILE]), sorted(found[FAILURE_FILE]), sorted(closed)


def _dead_links(path: Path) -> list[Path]:
    """In a folder itself, as of a machine that is not mounted; a checkpoint may have been removed."""
    if not path.is_dir():
        return []
    with os.scandir(path) as entries:
        links = [Path(entry.path) for entry in entries if entry.is_symlink() and entry.name != LINK]
    return sorted(link for link in links if not link.exists())


def _read_files(files: list[Path], processes: int) -> Iterator[tuple[Path, list[Result], list[str]]]:
    """(file, its results, its problems), in order."""
    if processes < 2 or len(files) < FILES_FOR_PROCESSES:
        yield from map(_read_file, files)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("fork"), initializer=end_with_parent) as pool:
        yield from pool.map(_read_file, files, chunksize=max(1, len(files) // (4 * processes)))


def _read_file(file: Path) -> tuple[Path, list[Result], list[str]]:
    try:
        if file.suffix == ".csv":
            table = read_table(file)
            return file, table.results, [*table.problems, *table.unreadable]
        return file, [unedited(Result.from_json(read_text_bounded(file)))], []
    except ValueError as error:
        if (closed := unreadable(file, otherwise=ANOTHER_FOLDER)) is not None:
            return file, [], [str(closed)]
        what = NO_RESULTS if str(error).startswith("not JSON") and file.suffix != ".json" else str(error)
        hint = f"; take {STORE_FILE} of a results folder, or that folder" if what.startswith(NO_TABLE) else ""
        return file, [], [f"{file}: {what}{hint}"]


@dataclass
class Table:
    """A CSV file of results: what was read, `unreadable`: why a line cannot be -> its cells, and other problems."""

    results: list[Result] = field(default_factory=list)
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_table(file: Path) -> Table:
    """Every line of a CSV file of results; an empty file is a table without lines.

    Raises:
        ValueError: it holds something else.
    """
    text, table = read_table_text(file), Table()
    whole = whole_lines(text)
    header, lines = parse_lines(whole)
    if text and (missing := missing_columns(header)):
        raise ValueError(_no_table(missing))
    if whole != text:
        table.problems.append(f"{file}, last line: it is half a line, as a killed run leaves it")
    for number, cells in enumerate(lines, start=1):
        try:
            table.results.append(unedited(Result.from_flat(cells)))
        except ValueError as error:
            table.unreadable[f"{file}, result {number}: {error}"] = cells
    return table


def _no_table(missing: list[str]) -> str:
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    lacks = f"it has no column {', '.join(missing[:3])}{more}"
    return f"{NO_TABLE}, since {lacks}"


def unedited(result: Result) -> Result:
    """The result; what has no digest, being of an older version, is not looked at. Raises ValueError where it was edited."""
    stored = result.identity.record_sha256
    if stored not in (None, record_digest({group: vars(fields) for group, fields in vars(result).items()})):
        raise ValueError(
            f"run {result.identity.run_id} was edited after it was stored: its record_sha256 does not hold"
        )
    return result


def _replace(path: Path, text: str, lease: Lease | None = None) -> None:
    """A reader or a kill sees the old file or the new one, never half. Raises LeaseLost where the file is another's by now."""
    with whole_file(path) as new, new.open("w", newline="", **TEXT) as file:
        file.write(text)
        if lease is not None:
            lease.require()
