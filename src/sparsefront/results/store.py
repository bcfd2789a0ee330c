"""Results on disk: `row.json` of each run, and the CSV file that many runs append to and that is made anew from them."""

import codecs
import csv
import fcntl
import io
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import MOST_TEXT_BYTES, Unreadable, read_table_text, separator_of
from sparsefront.artifacts.durable import below_with_links, unreadable, whole_file
from sparsefront.artifacts.lease import Lease, do_alone
from sparsefront.errors import InvalidSetting, Obstacle, printable
from sparsefront.options import program_command
from sparsefront.processes import end_with_parent
from sparsefront.results.packed import SUFFIX, is_in, is_packed, read_in, read_text_in
from sparsefront.results.record import Result, missing_columns, record_digest, result_fields
from sparsefront.results.run_folder import ANOTHER_FOLDER, FAILURE_FILE, LINK
from sparsefront.tasks.outcomes import MOST_FILE_BYTES, Outcomes, parse_outcomes

# A CSV that grows line by line, so that a killed study goes on behind its last line; or of which a line is kept up to
# date.
#
# We write UTF-8 and commas. What a spreadsheet saved with a byte order mark, semicolons or tabs, or as UTF-16, is
# read, too.

# A line torn inside a character must not stop its repair: bytes that are no UTF-8 pass through unchanged.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
SAVED_BY_OTHERS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_lines(path: Path) -> list[dict[str, str]]:
    """Lines by column; none where there is no file.

    Raises:
        ValueError: it is no CSV, which the message names.
    """
    if not path.is_file():
        return []
    try:
        text = read_table_text(path)
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator_of(text)))
    except (Unreadable, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None


def drop_lines(path: Path, like: Mapping[str, str]) -> None:
    """Take out the lines that have all these values, at any moment the file is whole; one without such lines is left alone."""
    lines = read_lines(path)
    kept = [line for line in lines if any(line.get(name) != value for name, value in like.items())]
    if len(kept) == len(lines):
        return
    ending = "\r\n" if path.read_bytes().partition(b"\n")[0].endswith(b"\r") else "\n"
    _write_whole(path, list(lines[0]), kept, ending)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add one line, and its columns as the head where the file is new; other processes of this host may do so at once.

    Raises:
        ValueError: the file has other columns, or a spreadsheet saved it: our lines would not fit to its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", **TEXT) as file:  # whatever is read, it is written at the end
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        file.seek(0)
        head = file.readline()
        if head.encode(**TEXT).startswith(SAVED_BY_OTHERS) or separator_of(head) != ",":
            raise ValueError(
                f"{path} was saved by a spreadsheet; save it as CSV in UTF-8 with commas, or name another file"
            )
        if head and next(csv.reader([head])) != list(line):
            raise ValueError(f"{path} has columns {head.strip()}, not {','.join(line)}; name another file")
        writer = csv.DictWriter(file, list(line), lineterminator="\r\n" if head.endswith("\r\n") else "\n")
        if not head:
            writer.writeheader()
        writer.writerow(line)


def put_line(path: Path, line: Mapping[str, Any], *, key: str) -> None:
    """Replace the line that has the same value in column `key`, or add it; at any moment the file is whole.

    Raises:
        ValueError: the file has other columns.
    """
    lines = read_lines(path)
    if lines and list(lines[0]) != list(line):
        raise ValueError(f"{path} has columns {','.join(lines[0])}, not {','.join(line)}; name another file")
    places = [place for place, other in enumerate(lines) if other[key] == str(line[key])] or [len(lines)]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(path, list(line), [*lines[: places[0]], line, *lines[places[0] + 1 :]])


def _write_whole(path: Path, columns: list[str], lines: Iterable[Mapping[str, Any]], ending: str = "\n") -> None:
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator=ending)
        writer.writeheader()
        writer.writerows(lines)


# The text of a CSV file of results: whole lines, cells as they are written; also of one that a spreadsheet saved.
#
# We write UTF-8, commas and `\n`. A spreadsheet may save the same table with a byte order mark, semicolons or tabs,
# as UTF-16, and with `TRUE` for `True`: that is read, too. It would take a cell that begins with `=` for a formula,
# so such cells are written with an apostrophe before them, which reading takes off.

# One cell holds the kernels of all layers as JSON; the csv module's own limit is 128 KiB.
csv.field_size_limit(2**31 - 1)
# What a spreadsheet calculates rather than shows; a negative number is one for it, too.
_FORMULA = re.compile(r"[=+@\t\r\n]|-(?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def whole_lines(text: str) -> str:
    """The text up to its last line end that is not inside quotes."""
    while text and (not text.endswith("\n") or text.count('"') % 2):
        text = text[: text.rfind("\n", 0, len(text) - 1) + 1]
    return text


def parse_lines(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """The header, and each line as column -> cell.

    Raises:
        Unreadable: the csv module cannot take it apart.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", restkey="", delimiter=separator_of(text))
    try:
        header = list(reader.fieldnames or [])
        return header, [_shown(line) if _has_apostrophe(line) else line for line in reader]
    except csv.Error as error:
        raise Unreadable(f"is no CSV ({error})") from None


def format_lines(header: list[str], lines: Iterable[dict], *, with_header: bool) -> str:
    """The text of lines under a header; cells of other columns are left out."""
    text = io.StringIO(newline="")
    # with this line end the csv module quotes a cell that holds a carriage return, too
    writer = csv.DictWriter(text, header, restval="", extrasaction="ignore", lineterminator="\r\n")
    if with_header:
        writer.writeheader()
    ends = [text.tell()]
    for line in lines:
        writer.writerow({name: escaped(value) for name, value in line.items()})
        ends.append(text.tell())
    written = text.getvalue()
    starts = [0, *ends] if with_header else ends
    return "".join(f"{written[start : end - 2]}\n" for start, end in zip(starts, starts[1:]))


def escaped(cell: Any) -> Any:
    """Text that a spreadsheet would calculate, or that looks as if it were escaped, with an apostrophe before it."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell.lstrip("'")) else cell


def _shown(line: dict[str, str]) -> dict[str, str]:
    """The cells as they were before `escaped`. An apostrophe before other text belongs to it."""
    return {name: cell[1:] if cell[:1] == "'" and escaped(cell) != cell else cell for name, cell in line.items()}


def _has_apostrophe(line: dict[str, str]) -> bool:
    return any(cell[:1] == "'" for cell in line.values())


# Which of several results of one run, or of runs with the same seeds, counts.

Rank = tuple[int, str]


def rank(result: Result) -> Rank:
    """The higher one counts: that with the control, which alone says what training did, and of two controls the one that had the
    recovery's teacher; else the newer one.
    """
    return _control_rank(result.quality.dense_continued, result.quality.dense_distilled), result.identity.time


def rank_of_line(line: Mapping[str, str]) -> Rank:
    """`rank` of a line of the store, column -> cell."""
    held = (line.get(control) or None for control in ("dense_continued", "dense_distilled"))
    return _control_rank(*held), line.get("time", "")


def _control_rank(continued: object, distilled: object) -> int:
    return 2 if distilled is not None else int(continued is not None)


log = logging.getLogger(__name__)
RESULT_FILE = "row.json"
STORE_FILE = "rows.csv"
FILES_FOR_PROCESSES = 2000  # fewer are read before a process has started
NO_RESULTS = f"holds no results; take a folder of results, its {STORE_FILE}, or the {RESULT_FILE} of a run"
NO_TABLE = "no table of results"


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
        remedy = f"move it away; {program_command('compare')} --rebuild {store_csv.parent} makes it anew from each {RESULT_FILE}"
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
    known = any(f"\n{cell},".encode() in content for cell in (run_id, f'"{run_id}"'))  # spreadsheets may quote all text
    if known or not (header[:1] == ["run_id"] and whole and plain):
        return None
    return header


@dataclass
class Reading:
    """What was found: results without exact duplicates, and what could not be read, each with its reason.

    `places`: run_id -> its results, each with the folder of a row.json that holds it, where the files that it names lie, or
    with the packed record that they lie in.
    `failures`: the files of runs that ended without a result.
    """

    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    places: dict[str, list[tuple[Result, Path]]] = field(default_factory=dict)
    failures: list[Path] = field(default_factory=list)
    _told: set[Path] = field(default_factory=set)

    def folder_of(self, result: Result) -> Path | None:
        """Where the files of a result lie, a folder or a packed record; of several the first with its outcomes; None of one from
        a table.
        """
        found = [folder for one, folder in self.places.get(result.identity.run_id, ()) if one == result]
        if len(found) < 2 or (file := result.quality.outcomes_file) is None:
            return found[0] if found else None
        return next((folder for folder in found if is_in(folder, Path(file).name)), found[0])

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
        if not is_in(folder, path.name):
            return None
        try:
            content = read_in(folder, path.name, max_bytes=MOST_FILE_BYTES)
            if stored is not None and sha256(content).hexdigest() != stored:
                raise Unreadable("is not the file that was stored: its sha256 differs")
            found = parse_outcomes(content, samples=result.quality.evaluated_samples)
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

    In a folder every `row.json` and packed record at any depth is read, in linked folders too; where there is none, every
    `rows.csv`. A file that cannot be read, and a result that was edited after it was stored, is a problem in the result, never
    an exception. A result met twice counts once.

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
                    place = file if is_packed(file) else file.parent
                    reading.places.setdefault(result.identity.run_id, []).append((result, place))
    return reading


def _files_of_runs(path: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The files with results, those of failures, and folders that may not be read, at any depth and in linked folders; walked
    once, several times as fast as `rglob`.
    """
    if not path.is_dir():
        return [path] if path.exists() else [], [], []
    closed: list[Path] = []
    found: dict[str, list[Path]] = {RESULT_FILE: [], STORE_FILE: [], FAILURE_FILE: []}
    for file in below_with_links(path, list(found), ending=SUFFIX, but=LINK, closed=closed.append):
        found[file.name if file.name in found else RESULT_FILE].append(file)
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
        place, name = (file, RESULT_FILE) if is_packed(file) else (file.parent, file.name)
        return file, [unedited(Result.from_json(read_text_in(place, name, max_bytes=MOST_TEXT_BYTES)))], []
    except ValueError as error:
        if (closed := unreadable(file, otherwise=ANOTHER_FOLDER)) is not None:
            return file, [], [str(closed)]
        what = NO_RESULTS if str(error).startswith("not JSON") and file.suffix not in (".json", ".zip") else str(error)
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
    added: dict[str, None] = {}
    for number, cells in enumerate(lines, start=1):
        try:
            result, others = _result_of(cells)
        except ValueError as error:
            table.unreadable[f"{file}, result {number}: {error}"] = cells
        else:
            table.results.append(result)
            added |= dict.fromkeys(others)
    if added:
        table.problems.append(f"{file}: cells under {', '.join(added)}, which is no field of a result")
    return table


def _result_of(cells: dict[str, str]) -> tuple[Result, list[str]]:
    """The result of a line, and the columns that somebody added to it: its digest holds without them.

    Raises:
        ValueError: it was edited, or is of no schema that is known here.
    """
    try:
        return unedited(Result.from_flat(cells)), []
    except ValueError:
        known = {field.name for field in result_fields()}
        added = [name for name, cell in cells.items() if cell and name not in known]
        if not added or not cells.get("record_sha256"):
            raise
        with suppress(ValueError):
            return unedited(Result.from_flat({name: cells[name] for name in cells if name in known})), added
        raise


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


# `rows.csv` made again from the `row.json` of each run; results of several stores put into one.


@dataclass(frozen=True)
class Rebuilt:
    """What a store holds now: `old`: the runs whose lines were kept since no `row.json` of theirs can be read.

    `kept`: why each line that cannot be read, and was kept as it is, cannot. `problems`: what was left out.
    """

    runs: set[str]
    old: set[str]
    kept: list[str]
    problems: list[str]


def rebuild_store(folder: Path, *, processes: int = 1) -> Rebuilt:
    """Write `rows.csv` of a folder of results anew, whole or not at all; safe beside runs that append to it.

    Lines of runs without a readable `row.json` stay, those that cannot be read too: nothing measured is lost. To drop them,
    delete the file first.

    Raises:
        InvalidSetting: no folder, no `row.json` below it that can be read, or its `rows.csv` is no table of results.
    """
    store = folder / STORE_FILE
    if folder.is_file():
        allowed = f"is a file: name the folder whose {STORE_FILE} is made anew, or with store=FILE.csv a new file for its results"
        raise InvalidSetting("results", folder, allowed)
    if not folder.is_dir():
        raise InvalidSetting("results", folder, "no such folder")

    def rebuild(lease: Lease) -> Rebuilt:
        reading = read_results([folder], processes=processes)
        if not reading.places:
            raise InvalidSetting("results", folder, f"holds no {RESULT_FILE} to make {STORE_FILE} from")
        before = _table_before(store, key="results")
        old = [one for one in before.results if one.identity.run_id not in reading.places]
        lease.require()
        kept = _write(store, [*reading.results, *old], before.unreadable)
        runs = {one.identity.run_id for one in old}
        return Rebuilt(runs | reading.places.keys(), runs, kept, [*reading.problems, *before.problems])

    return do_alone(store, rebuild)


def merge_stores(paths: Sequence[Path], store: Path, *, processes: int = 1) -> Rebuilt:
    """Write one CSV file of all results in some folders and files, its own lines among them where it is there.

    Raises:
        InvalidSetting: no result was found, or the file is there and is no table of results.
    """
    if store.suffix != ".csv":
        raise InvalidSetting("store", store, "must end in .csv")
    store.parent.mkdir(parents=True, exist_ok=True)

    def merge(lease: Lease) -> Rebuilt:
        before = _table_before(store, key="store")
        reading = read_results(paths, processes=processes)
        results = [*reading.results, *before.results]
        if not results:
            raise InvalidSetting("results", " ".join(map(str, paths)), "no results found")
        lease.require()
        kept = _write(store, results, before.unreadable)
        return Rebuilt({one.identity.run_id for one in results}, set(), kept, [*reading.problems, *before.problems])

    return do_alone(store, merge)


def _table_before(store: Path, *, key: str) -> Table:
    """What the file holds that is about to be written anew; what is not ours is never overwritten."""
    try:
        return read_table(store) if os.path.lexists(store) else Table()
    except ValueError as error:
        raise InvalidSetting(
            key, store, f"is not overwritten: {error}; move it away, and {STORE_FILE} is made anew"
        ) from None


def _write(store: Path, results: Iterable[Result], unreadable: dict[str, dict[str, str]]) -> list[str]:
    """One line per `run_id`, that of its highest `rank`, in the order of time; below them the lines that cannot be read, of
    runs that have no other. Returns why each of those cannot be.
    """
    highest = {one.identity.run_id: one for one in sorted(results, key=rank)}
    ordered = sorted(highest.values(), key=lambda result: result.identity.time)
    lines = [{name: "" if value is None else value for name, value in one.flat().items()} for one in ordered]
    kept = {why: cells for why, cells in unreadable.items() if cells.get("run_id") not in highest}
    columns = [field.name for field in result_fields()]
    more = dict.fromkeys(name for cells in kept.values() for name, text in cells.items() if name and text)
    header = [*columns, *(name for name in more if name not in columns)]
    text = format_lines(header, [*lines, *kept.values()], with_header=True)
    with whole_file(store) as new, new.open("w", newline="", **TEXT) as file:
        file.write(text)
    return list(kept)
