"""Results on disk: `row.json` of each run, and the shared CSV file, which can be rebuilt from them."""

import csv
import io
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
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

# The text of a CSV file of results.
#
# Files are written as UTF-8 with commas and `\n`. A spreadsheet may save them with a byte order mark, semicolons or tabs, as
# UTF-16, and with `TRUE` for `True`, all of which can be read. It would take a cell that begins with `=` for a formula, so such
# cells are written with a leading apostrophe, which reading removes.

# Invalid UTF-8 is preserved, so that a line torn inside a character can be repaired.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
# A cell with the kernels of all layers as JSON exceeds the csv module's default limit of 128 KiB.
csv.field_size_limit(2**31 - 1)
# Text that a spreadsheet would evaluate; a negative number is not.
_FORMULA = re.compile(r"[=+@\t\r\n]|-(?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def whole_lines(text: str) -> str:
    """The text up to its last line end outside of quotes."""
    while text and (not text.endswith("\n") or text.count('"') % 2):
        text = text[: text.rfind("\n", 0, len(text) - 1) + 1]
    return text


def parse_lines(text: str) -> tuple[list[str], Iterator[dict[str, str]]]:
    """Parse the header, and each line as column -> cell, one at a time: those of a large store take many times its size.

    Raises:
        Unreadable: the csv module cannot parse it; also while lines are taken.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", restkey="", delimiter=separator_of(text))

    def lines() -> Iterator[dict[str, str]]:
        try:
            for line in reader:
                apostrophes = any(cell[:1] == "'" for cell in line.values())
                yield {name: _unescape(cell) for name, cell in line.items()} if apostrophes else line
        except csv.Error as error:
            raise Unreadable(f"is no CSV ({error})") from None

    try:
        return list(reader.fieldnames or []), lines()
    except csv.Error as error:
        raise Unreadable(f"is no CSV ({error})") from None


def format_lines(header: list[str], lines: Iterable[Mapping], *, with_header: bool) -> str:
    """Format lines under a header; cells of other columns are dropped."""
    text = io.StringIO(newline="")
    # with this line end the csv module also quotes cells with a carriage return
    writer = csv.DictWriter(text, header, restval="", extrasaction="ignore", lineterminator="\r\n")
    if with_header:
        writer.writeheader()
    starts = [0, text.tell()] if with_header else [0]
    for line in lines:
        writer.writerow({name: escape_cell(value) for name, value in line.items()})
        starts.append(text.tell())
    written = text.getvalue()
    return "".join(f"{written[start : end - 2]}\n" for start, end in zip(starts, starts[1:]))


def escape_cell(cell: Any) -> Any:
    """Prefix an apostrophe to text that a spreadsheet would evaluate, or that looks escaped."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell.lstrip("'")) else cell


def _unescape(cell: str) -> str:
    """Undo `escape_cell`; an apostrophe before other text is kept."""
    return cell[1:] if cell[:1] == "'" and escape_cell(cell) != cell else cell


def rank(result: Result) -> tuple[int, str]:
    """Sort key: results with the control, which shows the effect of training alone, rank higher, those with the teacher's
    control highest; then the newer one.
    """
    quality = result.quality
    held = {"dense_continued": quality.dense_continued, "dense_distilled": quality.dense_distilled}
    return rank_of_line({**held, "time": result.identity.time})


def rank_of_line(line: Mapping[str, Any]) -> tuple[int, str]:
    """`rank` of a line of the store, column -> cell."""
    continued, distilled = (line.get(name) not in (None, "") for name in ("dense_continued", "dense_distilled"))
    return 2 if distilled else int(continued), line.get("time", "")


log = logging.getLogger(__name__)
RESULT_FILE = "row.json"
STORE_FILE = "rows.csv"
FILES_FOR_PROCESSES = 2000  # fewer are read faster than a process starts
NO_RESULTS = f"holds no results; take a folder of results, its {STORE_FILE}, or the {RESULT_FILE} of a run"
NO_TABLE = "no table of results"


def write_result_json(path: Path, result: Result) -> Path:
    """Write the result to `path` atomically, creating folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, result.to_json())
    return path


def append_result(store_csv: Path, result: Result) -> None:
    """Add the result to the store; safe with concurrent writers. There is one line per `run_id`, of the higher `rank`.

    Normally this appends one line in one write and parses only the header. The file is rewritten atomically if the result
    has a new column, if its run is already there, if a spreadsheet saved the file in another format, or if a killed writer
    left a partial line (dropped, with a warning: that run's row.json still exists).

    Raises:
        Obstacle: the file is not a table of results; it is not changed.
    """
    store_csv.parent.mkdir(parents=True, exist_ok=True)

    def append(lease: Lease) -> None:
        _put(store_csv, result, lease)
        lease.require()  # after a suspend, the file may have been replaced

    do_alone(store_csv, append)


def _put(store_csv: Path, result: Result, lease: Lease) -> None:
    run_id, cells = result.identity.run_id, _cells_of(result)
    header = _header_of_a_store_without(store_csv, run_id)
    if header and not cells.keys() - set(header):
        lease.require()
        with store_csv.open("a", newline="", **TEXT) as file:
            file.write(format_lines(header, [cells], with_header=False))
        return
    try:
        text = read_table_text(store_csv) if os.path.lexists(store_csv) else ""
        whole = whole_lines(text)
        header, parsed = parse_lines(whole)
        _require_table(text, header)
        lines = list(parsed)
    except Unreadable as error:
        remedy = f"move it away; {program_command('compare')} --rebuild {store_csv.parent} makes it anew from each {RESULT_FILE}"
        raise Obstacle(str(store_csv), None, f"{error}; {remedy}") from None
    if whole != text:
        log.warning("%s ended in half a line, left by a killed run: it was dropped", store_csv)
    known = [line for line in lines if line.get("run_id") != run_id]
    if any(rank_of_line(line) > rank(result) for line in lines if line.get("run_id") == run_id):
        if whole == text:
            return
        known, cells = lines, {}
    header = [*header, *(name for name in cells if name not in header)]
    _replace(store_csv, format_lines(header, [*known, *([cells] if cells else [])], with_header=True), lease)


def _cells_of(result: Result) -> dict[str, Any]:
    return {name: "" if value is None else value for name, value in result.flat().items()}


def _require_table(text: str, header: list[str]) -> None:
    """Raise Unreadable if a file that is not empty lacks columns of a table of results."""
    if text and (missing := missing_columns(header)):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise Unreadable(f"{NO_TABLE}, since it has no column {', '.join(missing[:3])}{more}")


def _header_of_a_store_without(store_csv: Path, run_id: str) -> list[str] | None:
    """The columns, if a quick check shows that all lines are complete and none is of this run; else None."""
    if not store_csv.is_file():
        return None
    content = store_csv.read_bytes()
    first = content[: content.find(b"\n") + 1].decode(**TEXT)
    header = parse_lines(first)[0] if separator_of(first) == "," else []
    whole = content.endswith(b"\n") and content.count(b'"') % 2 == 0
    plain = run_id.isascii() and not set(run_id) & set('",\r\n') and escape_cell(run_id) == run_id
    known = any(f"\n{cell},".encode() in content for cell in (run_id, f'"{run_id}"'))  # spreadsheets may quote
    return header if header[:1] == ["run_id"] and whole and plain and not known else None


@dataclass
class Reading:
    """Results without exact duplicates, and the reasons for unreadable ones.

    `places`: run_id -> its results, each with the folder of its row.json, where the files it names are, or with the packed
    record that contains them.
    `failures`: failure files of runs without a result.
    """

    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    places: dict[str, list[tuple[Result, Path]]] = field(default_factory=dict)
    failures: list[Path] = field(default_factory=list)
    _warned: set[Path] = field(default_factory=set)

    def folder_of(self, result: Result) -> Path | None:
        """Folder or packed record of a result's files; of several the first with outcomes; None for a result from a table."""
        folders = [folder for one, folder in self.places.get(result.identity.run_id, ()) if one == result]
        if len(folders) < 2 or (file := result.quality.outcomes_file) is None:
            return folders[0] if folders else None
        return next((folder for folder in folders if is_in(folder, Path(file).name)), folders[0])

    @property
    def finished(self) -> list[Path]:
        """The folders of all runs with a result."""
        return [folder for pairs in self.places.values() for _, folder in pairs]

    def outcomes_of(self, result: Result) -> dict[str, Outcomes] | None:
        """Per-sample outcomes of each of a result's networks; None if they are missing, were edited, or cannot be read, which
        is logged.
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
            by_side = parse_outcomes(content, samples=result.quality.evaluated_samples)
            for outcomes in by_side.values():
                outcomes.require_metric()
            return by_side
        except (OSError, ValueError) as error:
            if path not in self._warned:
                self._warned.add(path)
                log.warning("%s", printable(f"{path}: {error}; the run is shown without a comparison by samples"))
            return None


def read_results(paths: Iterable[Path], *, processes: int = 1) -> Reading:
    """Read results from folders, CSV files and JSON files.

    In a folder every `row.json` and packed record at any depth is read, also in linked folders; if there are none, every
    `rows.csv`. Unreadable files and edited results are recorded as problems and never raise. Duplicates are dropped.

    Args:
        processes: for reading a large store; they are forked, so more than one requires a program without threads.
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
    """Files with results, failure files, and unreadable folders, at any depth and in linked folders; in a single walk, several
    times as fast as `rglob`.
    """
    if not path.is_dir():
        return [path] if path.exists() else [], [], []
    closed: list[Path] = []
    by_name: dict[str, list[Path]] = {RESULT_FILE: [], STORE_FILE: [], FAILURE_FILE: []}
    for file in below_with_links(path, list(by_name), ending=SUFFIX, but=LINK, closed=closed.append):
        by_name[file.name if file.name in by_name else RESULT_FILE].append(file)
    return sorted(by_name[RESULT_FILE]) or sorted(by_name[STORE_FILE]), sorted(by_name[FAILURE_FILE]), sorted(closed)


def _dead_links(path: Path) -> list[Path]:
    """Dangling links directly in a folder, such as to an unmounted machine; removed checkpoints are ignored."""
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
        result = require_unedited(Result.from_json(read_text_in(place, name, max_bytes=MOST_TEXT_BYTES)))
        return file, [result], []
    except ValueError as error:
        closed = unreadable(file, otherwise=ANOTHER_FOLDER)
        if closed is not None:
            return file, [], [str(closed)]
        what = NO_RESULTS if str(error).startswith("not JSON") and file.suffix not in (".json", ".zip") else str(error)
        hint = f"; take {STORE_FILE} of a results folder, or that folder" if what.startswith(NO_TABLE) else ""
        return file, [], [f"{file}: {what}{hint}"]


@dataclass
class Table:
    """A CSV file of results: what was read, `unreadable`: reason -> cells of an unreadable line, and other problems."""

    results: list[Result] = field(default_factory=list)
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_table(file: Path) -> Table:
    """Read every line of a CSV file of results; an empty file has none.

    Raises:
        ValueError: it is another file.
    """
    text, table = read_table_text(file), Table()
    whole = whole_lines(text)
    header, lines = parse_lines(whole)
    _require_table(text, header)
    if whole != text:
        table.problems.append(f"{file}, last line: it is half a line, as a killed run leaves it")
    known = {field.name for field in result_fields()}
    added: dict[str, None] = {}
    for number, cells in enumerate(lines, start=1):
        others = [name for name, cell in cells.items() if cell and name not in known]
        try:
            # columns that a user added are dropped where the digest of all others shows that nothing was edited
            own = (
                {name: cells[name] for name in cells if name in known}
                if others and cells.get("record_sha256")
                else cells
            )
            table.results.append(require_unedited(Result.from_flat(own)))
            added |= dict.fromkeys(others)
        except ValueError as error:
            table.unreadable[f"{file}, result {number}: {error}"] = cells
    if added:
        table.problems.append(f"{file}: cells under {', '.join(added)}, which is no field of a result")
    return table


def require_unedited(result: Result) -> Result:
    """Check a result's digest, if it has one (older versions do not). Raises ValueError if it was edited."""
    stored = result.identity.record_sha256
    if stored not in (None, record_digest({group: vars(fields) for group, fields in vars(result).items()})):
        raise ValueError(
            f"run {result.identity.run_id} was edited after it was stored: its record_sha256 does not hold"
        )
    return result


def _replace(path: Path, text: str, lease: Lease | None = None) -> None:
    """Replace the file atomically. Raises LeaseLost if another process owns the file by now."""
    with whole_file(path) as new, new.open("w", newline="", **TEXT) as file:
        file.write(text)
        if lease is not None:
            lease.require()


@dataclass(frozen=True)
class Rebuilt:
    """The content of a rebuilt store: `old`: runs whose lines were kept because their `row.json` cannot be read.

    `unreadable`: why lines cannot be read, which were left unchanged. `problems`: what was left out.
    """

    runs: set[str]
    old: set[str]
    unreadable: list[str]
    problems: list[str]


def rebuild_store(folder: Path, *, processes: int = 1) -> Rebuilt:
    """Rebuild `rows.csv` of a folder of results atomically; safe while runs append to it.

    Lines of runs without a readable `row.json` are kept, even unreadable ones, so that no measurement is lost. To drop them,
    delete the file first.

    Raises:
        InvalidSetting: no folder, no readable `row.json` below it, or its `rows.csv` is not a table of results.
    """
    if folder.is_file():
        allowed = f"is a file: name the folder whose {STORE_FILE} is made anew, or with store=FILE.csv a new file for its results"
        raise InvalidSetting("results", folder, allowed)
    if not folder.is_dir():
        raise InvalidSetting("results", folder, "no such folder")

    def rebuild(lease: Lease) -> Rebuilt:
        reading = read_results([folder], processes=processes)
        if not reading.places:
            raise InvalidSetting("results", folder, f"holds no {RESULT_FILE} to make {STORE_FILE} from")
        before = _table_before(folder / STORE_FILE, key="results")
        before.results = [one for one in before.results if one.identity.run_id not in reading.places]
        old = {one.identity.run_id for one in before.results}
        return Rebuilt(old | reading.places.keys(), old, *_write(folder / STORE_FILE, reading, before, lease))

    return do_alone(folder / STORE_FILE, rebuild)


def merge_stores(paths: Sequence[Path], store: Path, *, processes: int = 1) -> Rebuilt:
    """Write all results in some folders and files, and those already in `store`, to one CSV file.

    Raises:
        InvalidSetting: no results were found, or the file exists and is not a table of results.
    """
    if store.suffix != ".csv":
        raise InvalidSetting("store", store, "must end in .csv")
    store.parent.mkdir(parents=True, exist_ok=True)

    def merge(lease: Lease) -> Rebuilt:
        before = _table_before(store, key="store")
        reading = read_results(paths, processes=processes)
        runs = {one.identity.run_id for one in (*reading.results, *before.results)}
        if not runs:
            raise InvalidSetting("results", " ".join(map(str, paths)), "no results found")
        return Rebuilt(runs, set(), *_write(store, reading, before, lease))

    return do_alone(store, merge)


def _table_before(store: Path, *, key: str) -> Table:
    """Read the file that is about to be rewritten; foreign files are never overwritten."""
    try:
        return read_table(store) if os.path.lexists(store) else Table()
    except ValueError as error:
        remedy = f"is not overwritten: {error}; move it away, and {STORE_FILE} is made anew"
        raise InvalidSetting(key, store, remedy) from None


def _write(store: Path, reading: Reading, before: Table, lease: Lease) -> tuple[list[str], list[str]]:
    """Write one line per `run_id`, of the highest `rank`, by time; then unreadable lines of runs without another line. Returns
    why each of these is unreadable, and all other problems.
    """
    lease.require()
    highest = {one.identity.run_id: one for one in sorted([*reading.results, *before.results], key=rank)}
    lines = map(_cells_of, sorted(highest.values(), key=lambda result: result.identity.time))
    leftovers = {why: cells for why, cells in before.unreadable.items() if cells.get("run_id") not in highest}
    header = dict.fromkeys(field.name for field in result_fields())
    header |= dict.fromkeys(name for cells in leftovers.values() for name, text in cells.items() if name and text)
    _replace(store, format_lines(list(header), [*lines, *leftovers.values()], with_header=True))
    return list(leftovers), [*reading.problems, *before.problems]
