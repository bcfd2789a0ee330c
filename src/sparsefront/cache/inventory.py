"""What lies in a cache folder: every stored stage, its size, its last use, and which others it was made from."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.access import unreadable
from sparsefront.artifacts.durable import PARTIAL
from sparsefront.artifacts.generations import number
from sparsefront.artifacts.leftovers import REMOVED
from sparsefront.artifacts.record import RECORD, read_record
from sparsefront.errors import Obstacle

DATA = "data"  # downloads and tokenized text: no stages
UNFINISHED = ".unfinished"
# A stage that shares files with an earlier one (hard links) is not charged for them.
ORDER = ("dense", "prune", "recover", "dense_continued", "export", "dense_quality", "measure", "result")


@dataclass(frozen=True)
class File:
    """One file on the disk, by whatever names; `links`: how many names it has, in the cache or elsewhere."""

    identity: tuple[int, int]
    bytes: int
    links: int


@dataclass(frozen=True, eq=False)
class Stored:
    """A stored stage, or what a killed maker left to go on from.

    Args:
        last_used: time stamp.
        made_from: among other texts, the keys of the stages that it was made from.
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
    """`stored`: by stage, in the order of a run; `half_written`: of processes that work now, or were killed; `by_key`: of each
    finished stage the newest, where it was made again while a process read it; `unreadable`: what other users keep to themselves.
    """

    root: Path
    stored: tuple[Stored, ...] = ()
    half_written: tuple[File, ...] = ()
    data: tuple[File, ...] = ()
    by_key: dict[str, Stored] = field(default_factory=dict)
    unreadable: tuple[Obstacle, ...] = ()


def read_inventory(root: Path) -> Inventory:
    """Look through a cache folder; a folder that vanishes meanwhile is left out."""
    stored, half_written, kept_from_us = [], [], []
    stages = sorted((path for path in _folders(root) if path.name != DATA), key=_place)
    for folder in stages:
        found = []
        for path in [folder] if not os.access(folder, os.R_OK | os.X_OK) else _folders(folder):
            if (obstacle := unreadable(path, otherwise="look into another cache")) is not None:
                kept_from_us.append(obstacle)
                continue
            if PARTIAL in path.name or REMOVED in path.name:
                half_written += _files(path)
            elif path.name.endswith(UNFINISHED) or (path / RECORD).exists():
                found.append(path)
        stored += (_stored(folder.name, path) for path in sorted(found, key=lambda path: (_key(path), number(path))))
    by_key = {item.key: item for item in stored if item.finished}
    return Inventory(root, tuple(stored), tuple(half_written), tuple(_files(root / DATA)), by_key, tuple(kept_from_us))


def disk_bytes(files: Iterable[File]) -> int:
    """Bytes on the disk: a file with several names counts once."""
    return sum({file.identity: file.bytes for file in files}.values())


def freed_bytes(items: Iterable[Stored]) -> int:
    """Bytes that removing these would free: those of files that have no other name."""
    files = [file for item in items for file in item.files]
    names = Counter(file.identity for file in files)
    return sum({file.identity: file.bytes for file in files if names[file.identity] >= file.links}.values())


def bytes_by_stage(inventory: Inventory) -> dict[str, int]:
    """Stage -> bytes; what stages share counts for the first."""
    charged: set[tuple[int, int]] = set()
    sizes: dict[str, int] = {}
    for item in inventory.stored:
        own = [file for file in item.files if file.identity not in charged]
        charged |= {file.identity for file in own}
        sizes[item.stage] = sizes.get(item.stage, 0) + disk_bytes(own)
    return sizes


def _folders(folder: Path) -> list[Path]:
    """Without those of leases, whose names begin with a dot."""
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _key(path: Path) -> str:
    return path.name.partition(".")[0]


def _place(folder: Path) -> tuple:
    return (ORDER.index(folder.name), "") if folder.name in ORDER else (len(ORDER), folder.name)


def _stored(stage: str, path: Path) -> Stored:
    finished, key = not path.name.endswith(UNFINISHED), _key(path)
    changed = [path, path / RECORD] if finished else [path, *path.rglob("*")]
    # Versions before 0.2 kept the time of the last use at the name of a lock.
    last_used = max(_time(file) for file in [*changed, path.with_name(f"{key}.lock")])
    record = _record(path)
    made_from, used = frozenset(_texts(record.get("determined_by"))), frozenset(record.get("used", ()))
    return Stored(stage, key, path, tuple(_files(path)), last_used, finished, made_from, used)


def _record(path: Path) -> dict[str, Any]:
    try:
        return read_record(path)
    except ValueError:  # damaged, or of a training that is not finished
        return {}


def _texts(content: Any) -> Iterator[str]:
    """Every text in JSON content: the keys of the stages that one was made from are among them."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _texts(part)


def _files(folder: Path) -> Iterator[File]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            yield File((found.st_dev, found.st_ino), found.st_size, found.st_nlink)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
