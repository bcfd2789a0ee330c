"""The contents of a cache folder: stored stages, the results that use them, and their removal."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import Unreadable, read_bytes_bounded, read_json_bounded, read_table_text
from sparsefront.artifacts.durable import PARTIAL, below_with_links, unreadable
from sparsefront.artifacts.lease import GONE_S, hold_alone, process_tag
from sparsefront.artifacts.store import RECORD, REMOVED, generation_number, maker_of, read_record
from sparsefront.errors import Obstacle, printable
from sparsefront.results.run_folder import LINK
from sparsefront.results.store import RESULT_FILE, STORE_FILE, TEXT, parse_lines, whole_lines

# Results that use a cache: runs in all folders of results that ever used it.

MOST_LIST_BYTES = 2**20
FOLDERS_FILE = "results_folders.txt"  # in the cache folder: one relative path per line


def remember_results(cache: Path, results: Path) -> None:
    """Record that a folder of results uses the cache; if that fails, the folder must be passed to the command."""
    line = os.path.relpath(results.resolve(), cache.resolve())
    with suppress(OSError, ValueError):
        text = _text(cache)
        if line not in text.split("\n"):
            with (cache / FOLDERS_FILE).open("a", **TEXT) as file:
                file.write(f"{line}\n" if text.endswith("\n") or not text else f"\n{line}\n")


def remembered_results(cache: Path) -> tuple[list[Path], list[str]]:
    """The recorded folders of results, some of which may no longer exist; and error messages if the list or a line is
    damaged.
    """
    file = cache / FOLDERS_FILE
    try:
        text = _text(cache)
    except ValueError as error:
        return [], [f"{file}: {error}"]
    folders, problems = [], []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        folder = Path(os.path.normpath(cache.resolve() / line))
        try:
            exists = folder.is_dir()
        except OSError:  # longer than any path
            exists = None
        # a path may contain any byte, but damaged ones do not exist
        if not line or exists is None or (printable(line) != line and not exists):
            problems.append(f"{file}, line {number}: is no path of a folder ({line[:80]!r})")
        else:
            folders.append(folder)
    return folders, problems


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
        trimmed_name = name.rstrip("/")
        resolved = Path(trimmed_name).resolve()
        return trimmed_name in (self.run_id, *self.names) or any(
            folder.resolve() == resolved or folder.name == trimmed_name for folder in self.folders
        )


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
        result_files = sorted(below_with_links(folder, (RESULT_FILE, STORE_FILE), but=LINK, closed=closed.append))
        problems += [str(unreadable(one, otherwise="have its owner remove what is unused")) for one in closed]
        files = [file for file in result_files if file.name == RESULT_FILE] or result_files
        for file in files:
            try:
                records = [read_json_bounded(file)] if file.name == RESULT_FILE else _csv_records(file)
                for record in records:
                    _add(runs, record, file.parent, folder)
            except ValueError as error:
                problems.append(f"{file}: {error}")
            except (KeyError, TypeError) as error:
                problems.append(f"{file}: no result of a run ({type(error).__name__}: {error})")
    return Results(list(runs.values()), problems)


def _add(runs: dict[str, Run], record: dict[str, Any], place: Path, folder: Path) -> None:
    identity, choice = record["identity"], record["choice"]
    run_id, checkpoint = identity["run_id"], identity.get("checkpoint")
    if not all(isinstance(text, str) for text in (run_id, choice["pattern"], checkpoint or "")):
        raise TypeError("run_id, pattern and checkpoint are texts")
    sparsity = "" if choice["pattern"] == "dense" else f" {record['sparsity']['sparsity_target']}"
    label = f"{choice['pattern']}{sparsity}"
    run = runs.setdefault(run_id, Run(run_id, label))
    run.names.append(place.relative_to(folder).as_posix())
    run.folders.append(place)
    run.starts.update({run_id} if not checkpoint else {run_id, Path(checkpoint).name})


def _csv_records(file: Path) -> list[dict[str, Any]]:
    """The lines of a rows.csv, nested as far as needed here."""
    _, lines = parse_lines(whole_lines(read_table_text(file)))
    return [
        {"identity": line, "choice": line, "sparsity": {"sparsity_target": line["sparsity_target"]}} for line in lines
    ]


def _text(cache: Path) -> str:
    """Contents of the list of folders; empty if it does not exist."""
    file = cache / FOLDERS_FILE
    if not os.path.lexists(file):
        return ""
    content = read_bytes_bounded(file, max_bytes=MOST_LIST_BYTES)
    if not content:
        raise Unreadable("is empty")
    return content.decode(**TEXT)


DATA = "data"  # downloads and tokenized text, not stages
UNFINISHED = ".unfinished"
# In pipeline order: a stage that shares files (hard links) with an earlier one is not charged for them.
ORDER = (
    "dense",
    "teacher",
    "prune",
    "recover",
    "dense_continued",
    "dense_distilled",
    "export",
    "dense_quality",
    "measure",
    "result",
)


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


@dataclass(frozen=True)
class Inventory:
    """`stored`: by stage, in pipeline order; `half_written`: of running or killed processes; `by_key`: the newest copy of each
    finished stage (one may be remade while it is read); `unreadable`: not accessible to this user.
    """

    root: Path
    stored: tuple[Stored, ...] = ()
    half_written: tuple[File, ...] = ()
    data: tuple[File, ...] = ()
    by_key: dict[str, Stored] = field(default_factory=dict)
    unreadable: tuple[Obstacle, ...] = ()


def read_inventory(root: Path) -> Inventory:
    """Scan a cache folder; folders that vanish meanwhile are skipped."""
    stored, half_written, kept_from_us = [], [], []
    stages = sorted((path for path in _folders(root) if path.name != DATA), key=_place)
    for folder in stages:
        stage_paths = []
        for path in [folder] if not os.access(folder, os.R_OK | os.X_OK) else _folders(folder):
            if (obstacle := unreadable(path, otherwise="look into another cache")) is not None:
                kept_from_us.append(obstacle)
                continue
            if PARTIAL in path.name or REMOVED in path.name:
                half_written += _files(path)
            elif path.name.endswith(UNFINISHED) or (path / RECORD).exists():
                stage_paths.append(path)
        stored += (
            _stored(folder.name, path)
            for path in sorted(stage_paths, key=lambda path: (_key(path), generation_number(path)))
        )
    by_key = {item.key: item for item in stored if item.finished}
    return Inventory(root, tuple(stored), tuple(half_written), tuple(_files(root / DATA)), by_key, tuple(kept_from_us))


def disk_bytes(files: Iterable[File]) -> int:
    """Bytes on disk: files with several names count once."""
    return sum({file.identity: file.bytes for file in files}.values())


def freed_bytes(items: Iterable[Stored]) -> int:
    """Bytes that removal would free: those of files without other names."""
    files = [file for item in items for file in item.files]
    names = Counter(file.identity for file in files)
    return sum({file.identity: file.bytes for file in files if names[file.identity] >= file.links}.values())


def bytes_by_stage(inventory: Inventory) -> dict[str, int]:
    """Stage -> bytes; shared files count for the first stage."""
    charged: set[tuple[int, int]] = set()
    sizes: dict[str, int] = {}
    for item in inventory.stored:
        own = [file for file in item.files if file.identity not in charged]
        charged |= {file.identity for file in own}
        sizes[item.stage] = sizes.get(item.stage, 0) + disk_bytes(own)
    return sizes


def _folders(folder: Path) -> list[Path]:
    """Subfolders except those of leases, whose names begin with a dot."""
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _key(path: Path) -> str:
    return path.name.partition(".")[0]


def _place(folder: Path) -> tuple:
    return (ORDER.index(folder.name), "") if folder.name in ORDER else (len(ORDER), folder.name)


def _stored(stage: str, path: Path) -> Stored:
    finished, key = not path.name.endswith(UNFINISHED), _key(path)
    changed = [path, path / RECORD] if finished else [path, *path.rglob("*")]
    # Versions before 0.2 stored the time of last use as that of a lock file.
    last_used = max(_time(file) for file in [*changed, path.with_name(f"{key}.lock")])
    record = _record(path)
    made_from, used = frozenset(_texts(record.get("determined_by"))), frozenset(record.get("used", ()))
    return Stored(stage, key, path, tuple(_files(path)), last_used, finished, made_from, used)


def _record(path: Path) -> dict[str, Any]:
    try:
        return read_record(path)
    except ValueError:  # damaged or unfinished
        return {}


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
            try:
                status = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            yield File((status.st_dev, status.st_ino), status.st_size, status.st_nlink)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# Which results use which stored stages.

Usage = dict[str, list[Run]]  # key of a stored stage -> the results that use it


def find_usage(inventory: Inventory, runs: Sequence[Run]) -> Usage:
    """Map every stage to the results made from it, directly or indirectly, including the stages that store a result itself: with
    and without a control there are two, only one of which appears in the chain.
    """
    usage: Usage = {item.key: [] for item in inventory.stored if item.finished}
    results = [item for item in inventory.stored if item.finished and item.stage == "result"]
    for run in runs:
        holders = {item.key for item in results if run.run_id in item.made_from}
        for key in _all_before(inventory, run.starts | holders):
            usage[key].append(run)
    return usage


def only_of(usage: Usage, item: Stored, runs: Sequence[Run]) -> bool:
    """Whether the stage is used by these results and no others."""
    users = usage.get(item.key, [])
    return bool(users) and all(user in runs for user in users)


def _all_before(inventory: Inventory, starts: set[str]) -> set[str]:
    """The stages with these keys, all stages that their runs had used, and what those were made from."""
    known, reachable = inventory.by_key, set()
    left = list(starts.union(*(known[key].used for key in starts if key in known)))
    while left:
        key = left.pop()
        if key in known and key not in reachable:
            reachable.add(key)
            left += known[key].made_from
    return reachable


# Removal of stored stages that no process makes or reads.


@dataclass
class Removal:
    """What was removed, and what was not and why."""

    removed: list[Stored] = field(default_factory=list)
    kept: dict[Path, str] = field(default_factory=dict)


def remove(items: Iterable[Stored]) -> Removal:
    """Remove stages one by one, except those that a running process makes, resumes from or uses, or that another node's process
    used within a day (it may be suspended).
    """
    removal = Removal()
    for item in items:
        try:
            why_kept = _remove(item)
        except OSError as error:
            why_kept = f"cannot be removed: {error.strerror or error}"
        if why_kept is None:
            removal.removed.append(item)
        else:
            removal.kept[item.path] = why_kept
    return removal


def _remove(item: Stored) -> str | None:
    """Try to remove a stage; returns why it was kept, or None."""
    if (making := hold_alone(maker_of(item.path.with_name(item.key)), lapses_s=GONE_S)) is None:
        return "a running process makes it"
    try:
        using = hold_alone(item.path, lapses_s=GONE_S) if item.finished else making
        if using is None:
            return "a running process uses it"
        _discard(item.path)
        using.release()
    finally:
        making.release()
    return None


def _discard(path: Path) -> None:
    """Rename before deleting, so that no process finds half of it, even if this one is killed."""
    if path.exists():
        aside = path.with_name(f"{path.name}{REMOVED}{process_tag()}")
        os.rename(path, aside)
        shutil.rmtree(aside)
