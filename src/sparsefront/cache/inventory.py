"""The contents of a cache folder: stored stages, the results that use them, and their removal."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import Unreadable, read_bytes_bounded, read_json_bounded, read_table_text
from sparsefront.artifacts.durable import PARTIAL, below_with_links, unreadable
from sparsefront.artifacts.lease import GONE_S, hold_alone
from sparsefront.artifacts.store import RECORD, REMOVED, generation_number, maker_of, read_record, remove_unused
from sparsefront.errors import Obstacle, printable
from sparsefront.results.run_folder import LINK
from sparsefront.results.store import RESULT_FILE, STORE_FILE, TEXT, parse_lines, whole_lines

MOST_LIST_BYTES = 2**20
FOLDERS_FILE = "results_folders.txt"  # in the cache folder: one relative path per line


def remember_results(cache: Path, results: Path) -> None:
    """Record that a folder of results uses the cache; if that fails, the folder must be passed to the command."""
    line = os.path.relpath(results.resolve(), cache.resolve())
    with suppress(OSError, ValueError):
        text = _folders_text(cache)
        if line not in text.split("\n"):
            with (cache / FOLDERS_FILE).open("a", **TEXT) as file:
                file.write(f"{line}\n" if text.endswith("\n") or not text else f"\n{line}\n")


def list_results(cache: Path) -> tuple[list[Path], list[str]]:
    """The recorded folders of results, some of which may no longer exist; and messages if the list or a line is damaged."""
    file = cache / FOLDERS_FILE
    try:
        text = _folders_text(cache)
    except ValueError as error:
        return [], [f"{file}: {error}"]
    folders, problems = [], []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        folder = Path(os.path.normpath(cache.resolve() / line))
        with suppress(OSError):  # longer than any path
            # a path may contain any byte, but damaged ones do not exist
            if line and (folder.is_dir() or printable(line) == line):
                folders.append(folder)
                continue
        problems.append(f"{file}, line {number}: is no path of a folder ({line[:80]!r})")
    return folders, problems


def _folders_text(cache: Path) -> str:
    """Contents of the list of folders; empty if it does not exist."""
    file = cache / FOLDERS_FILE
    if not os.path.lexists(file):
        return ""
    content = read_bytes_bounded(file, max_bytes=MOST_LIST_BYTES)
    if not content:
        raise Unreadable("is empty")
    return content.decode(**TEXT)


@dataclass(frozen=True)
class Run:
    """A result: all run folders with the same record, which differ in when it was shown.

    Args:
        names: of the folders, relative to the folder of results, the newest last; `folders` are their paths.
        starts: keys of the stages that the record was written from.
    """

    run_id: str
    label: str
    names: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    starts: set[str] = field(default_factory=set)

    def is_called(self, name: str) -> bool:
        """Whether a name refers to this run: path or name of a folder, or id of the record."""
        name = name.rstrip("/")
        paths = [folder.resolve() for folder in self.folders]
        return name in (self.run_id, *self.names, *(path.name for path in paths)) or Path(name).resolve() in paths


@dataclass(frozen=True)
class Results:
    """The runs of some folders, and the unreadable records with reasons."""

    runs: list[Run]
    problems: list[str]


def read_results(folders: Iterable[Path]) -> Results:
    """Read the runs of some folders of results. As in `compare`: every row.json at any depth and in linked folders, or rows.csv
    if there is none.
    """
    runs: dict[str, Run] = {}
    problems: list[str] = []
    for folder in folders:
        closed: list[Path] = []
        files = sorted(below_with_links(folder, (RESULT_FILE, STORE_FILE), but=LINK, closed=closed.append))
        problems += [str(unreadable(one, otherwise="have its owner remove what is unused")) for one in closed]
        for file in [file for file in files if file.name == RESULT_FILE] or files:
            try:
                for record in [read_json_bounded(file)] if file.name == RESULT_FILE else _csv_records(file):
                    _add(runs, record, file.parent, folder)
            except ValueError as error:
                problems.append(f"{file}: {error}")
            except (KeyError, TypeError) as error:
                problems.append(f"{file}: no result of a run ({type(error).__name__}: {error})")
    return Results(list(runs.values()), problems)


def _add(runs: dict[str, Run], record: dict[str, Any], place: Path, folder: Path) -> None:
    identity, pattern = record["identity"], record["choice"]["pattern"]
    run_id, checkpoint = identity["run_id"], identity.get("checkpoint") or ""
    if not all(isinstance(text, str) for text in (run_id, pattern, checkpoint)):
        raise TypeError("run_id, pattern and checkpoint are texts")
    label = pattern if pattern == "dense" else f"{pattern} {record['sparsity']['sparsity_target']}"
    run = runs.setdefault(run_id, Run(run_id, label))
    run.names.append(place.relative_to(folder).as_posix())
    run.folders.append(place)
    run.starts.update({run_id, Path(checkpoint).name} - {""})


def _csv_records(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a rows.csv, nested as far as needed here."""
    for line in parse_lines(whole_lines(read_table_text(file)))[1]:
        yield {"identity": line, "choice": line, "sparsity": line}


DATA = "data"  # downloads and tokenized text, not stages
UNFINISHED = ".unfinished"
# In pipeline order: a stage that shares files (hard links) with an earlier one is not charged for them.
ORDER = "dense teacher prune recover dense_continued dense_distilled export dense_quality measure result".split()


@dataclass(frozen=True)
class File:
    """One file on disk under any name; `links`: its number of names, in the cache or elsewhere."""

    identity: tuple[int, int]
    bytes: int
    links: int


@dataclass(frozen=True, eq=False)
class Stored:
    """A stored stage, or the resume state of a killed run.

    Args:
        last_used: time stamp.
        made_from: texts that include the keys of the stages it was made from.
        used: keys of all stages that its run had used until then.
    """

    stage: str
    key: str
    path: Path
    files: tuple[File, ...]
    last_used: float
    finished: bool
    made_from: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()


@dataclass
class Inventory:
    """`stored`: by stage, in pipeline order; `half_written`: of running or killed processes; `by_key`: the newest copy of each
    finished stage (one may be remade while it is read); `unreadable`: not accessible to this user.
    """

    root: Path
    stored: list[Stored] = field(default_factory=list)
    half_written: list[File] = field(default_factory=list)
    data: list[File] = field(default_factory=list)
    by_key: dict[str, Stored] = field(default_factory=dict)
    unreadable: list[Obstacle] = field(default_factory=list)


def read_inventory(root: Path) -> Inventory:
    """Scan a cache folder; folders that vanish meanwhile are skipped."""
    inventory = Inventory(root, data=list(_files(root / DATA)))
    stages = sorted(folder for folder in _folders(root) if folder.name != DATA)
    for folder in sorted(stages, key=lambda path: ORDER.index(path.name) if path.name in ORDER else len(ORDER)):
        readable = os.access(folder, os.R_OK | os.X_OK)
        paths = _folders(folder) if readable else [folder]
        for path in sorted(paths, key=lambda path: (path.name.partition(".")[0], generation_number(path))):
            obstacle = unreadable(path, otherwise="look into another cache")
            if obstacle is not None:
                inventory.unreadable.append(obstacle)
            elif PARTIAL in path.name or REMOVED in path.name:
                inventory.half_written += _files(path)
            elif path.name.endswith(UNFINISHED) or (path / RECORD).exists():
                inventory.stored.append(_inspect(folder.name, path))
    inventory.by_key = {item.key: item for item in inventory.stored if item.finished}
    return inventory


def _inspect(stage: str, path: Path) -> Stored:
    finished = not path.name.endswith(UNFINISHED)
    times = []
    for file in [path, path / RECORD] if finished else [path, *path.rglob("*")]:
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    try:
        record = read_record(path)
    except ValueError:  # damaged or unfinished
        record = {}
    made_from, used = frozenset(_texts(record.get("determined_by"))), frozenset(record.get("used", ()))
    key = path.name.partition(".")[0]
    return Stored(stage, key, path, tuple(_files(path)), max(times, default=0.0), finished, made_from, used)


def _folders(folder: Path) -> list[Path]:
    """Subfolders except those of leases, whose names begin with a dot."""
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _texts(content: Any) -> Iterator[str]:
    """All strings in JSON content, which include the keys of the stages it was made from."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _texts(part)


def _files(folder: Path) -> Iterator[File]:
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(place, name))
                yield File((status.st_dev, status.st_ino), status.st_size, status.st_nlink)


def disk_bytes(files: Iterable[File]) -> int:
    """Bytes on disk: files with several names count once."""
    return sum({file.identity: file.bytes for file in files}.values())


def sum_bytes(items: Iterable[Stored]) -> int:
    """Bytes that removal would free: those of files without other names."""
    files = [file for item in items for file in item.files]
    names = Counter(file.identity for file in files)
    return disk_bytes(file for file in files if names[file.identity] >= file.links)


# Which results use which stored stages, and the removal of those that no process makes or reads.

Usage = dict[str, list[Run]]  # key of a stored stage -> the results that use it


def find_usage(inventory: Inventory, runs: Sequence[Run]) -> Usage:
    """Map every stage to the results made from it, directly or indirectly, including the stages that store a result itself: with
    and without a control there are two, only one of which appears in the chain.
    """
    known = inventory.by_key
    usage: Usage = {key: [] for key in known}
    for run in runs:
        holders = {key for key, item in known.items() if item.stage == "result" and run.run_id in item.made_from}
        waiting = list(run.starts | holders)
        waiting += [key for start in waiting if start in known for key in known[start].used]
        reached: set[str] = set()
        while waiting:
            key = waiting.pop()
            if key in known and key not in reached:
                reached.add(key)
                usage[key].append(run)
                waiting += known[key].made_from
    return usage


def only_of(usage: Usage, item: Stored, runs: Sequence[Run]) -> bool:
    """Whether the stage is used by these results and no others."""
    users = usage.get(item.key, [])
    return bool(users) and all(user in runs for user in users)


def remove(items: Iterable[Stored]) -> tuple[list[Stored], dict[Path, str]]:
    """Remove stages one by one, except those that a running process makes, resumes from or uses, or that another node's process
    used within a day (it may be suspended).

    Returns:
        what was removed, and path -> why of what was not.
    """
    removed, left = [], {}
    for item in items:
        try:
            making = hold_alone(maker_of(item.path.with_name(item.key)), lapses_s=GONE_S)
            if making is None:
                left[item.path] = "a running process makes it"
                continue
            try:
                if not item.path.exists() or remove_unused(item.path):
                    removed.append(item)
                else:
                    left[item.path] = "a running process uses it"
            finally:
                making.release()
        except OSError as error:
            left[item.path] = f"cannot be removed: {error.strerror or error}"
    return removed, left
