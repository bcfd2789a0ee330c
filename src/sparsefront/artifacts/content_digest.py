"""Names for content: the same bytes give the same digest, wherever they lie; by them damage of stored files is found."""

import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.durable import whole_file

# Cache keys of stored stages: a digest of everything that the content depends on.

DIGITS = 16


def digest(content: Any) -> str:
    """Short sha256 of JSON-able content; the order of mapping keys does not matter."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed versions; None where a distribution is absent.

    A stage's key holds those of the libraries that its result depends on, instead of their sources.
    """
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


# What reading a source or a large file once told, kept on disk, so that the next process need not read it again.

MOST = 20_000  # entries; with more it starts over, since most are of files that were edited


class DigestMemo:
    """JSON-able values by a text that names content and what was asked of it. Losing it costs time and nothing else."""

    def __init__(self, file: Path) -> None:
        self.file, self._known, self._new = file, _read_memo(file), {}

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = self._new[key] = make()
        return self._known[key]

    def save(self) -> None:
        """Add what is new to the file; what other processes wrote meanwhile stays."""
        if not self._new:
            return
        entries = _read_memo(self.file) | self._new
        entries, self._new = self._new if len(entries) > MOST else entries, {}
        with suppress(OSError):  # a disk that is full, or a cache that is read only
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.file) as new:
                new.write_text(json.dumps(entries), encoding="utf-8")


_active: ContextVar[DigestMemo | None] = ContextVar("_active", default=None)


@contextmanager
def remembering(file: Path) -> Iterator[None]:
    """Inside, `remembered` finds what earlier processes left in this file, and leaves what is new."""
    memo = _memo(file)
    token = _active.set(memo)
    try:
        yield
    finally:
        _active.reset(token)
        memo.save()


def remembered(key: str, make: Callable[[], Any]) -> Any:
    """The JSON-able value of a key; made where no process did before, or nothing is kept."""
    memo = _active.get()
    return make() if memo is None else memo.get(key, make)


_memo = cache(DigestMemo)


def _read_memo(file: Path) -> dict[str, Any]:
    try:
        found = read_json_bounded(file)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


READ_AT_MOST = 2**31  # bytes of a folder; of larger ones the listing counts
MANY = 10_000  # files of a folder
LARGE = 2**20  # bytes of a file that is worth remembering from one process to the next
SETTLED_NS = 2 * 10**9

_listings: dict[Path, tuple[dict[str, int], str]] = {}  # root -> its folders with their times, and the digest


def file_digest(path: Path) -> str:
    """sha256 of a file in hexadecimal, read as a stream, and once per process unless it changes."""
    found = path.stat()
    return _read_digest(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def listing_digest(root: Path) -> str:
    """sha256 over the relative path and size of every file below `root`.

    For folders of a hundred gigabytes and more, whose bytes would take longer to read than a run of training. `MANY` files
    are listed once per process, unless some come or go.
    """
    times, digest = _listings.get(root, ({}, ""))
    if times and all(_time(folder) == time for folder, time in times.items()):
        return digest
    times = {folder: _time(folder) for folder in _folders(root)}
    sizes, own = sorted(_sizes(times)), len(os.path.join(root, ""))
    digest = hashlib.sha256("".join(f"{file[own:]}\0{size}\n" for file, size in sizes).encode()).hexdigest()
    if len(sizes) >= MANY:
        _listings[root] = times, digest
    return digest


def path_digest(path: Path) -> str:
    """Of a file its bytes; of a folder the names and bytes of all files below, or their sizes from `READ_AT_MOST` on."""
    if path.is_file():
        return file_digest(path)
    sizes = sorted(_sizes(_folders(path)))
    if sum(size for _, size in sizes) >= READ_AT_MOST:
        return listing_digest(path)
    hashed = hashlib.sha256()
    for file, _ in sizes:
        hashed.update(f"{os.path.relpath(file, path)}\0{file_digest(Path(file))}\n".encode())
    return hashed.hexdigest()


@lru_cache(maxsize=4096)
def _read_digest(path: Path, inode: int, size: int, *times_ns: int) -> str:
    def read() -> str:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    # One that was written just now may be written again within the same tick of the clock.
    if size < LARGE or time.time_ns() - max(times_ns) < SETTLED_NS:
        return read()
    return remembered(f"file {path.resolve()} {inode} {size} {times_ns}", read)


def _folders(root: Path) -> list[str]:
    """The folder and all below, each once; links are followed, as torchvision follows them."""
    found, seen = [], set()
    for folder, below, _ in os.walk(root, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            below.clear()
        else:
            seen.add(place)
            found.append(folder)
    return found


def _sizes(folders: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Path and size of every file in these folders."""
    for folder in folders:
        with os.scandir(folder) as entries:
            yield from ((entry.path, entry.stat().st_size) for entry in entries if entry.is_file())


def _time(folder: str) -> int | None:
    """When files last came or went; None where the folder is gone."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


NAME_KEYS = ("_target_", "hub")  # of code, and of what is fetched


def by_content(settings: Any) -> Any:
    """Plain containers with every text that names an existing file or folder replaced by the digest of its content.

    A text is taken for a path where it begins with `~`, holds a slash or ends with a suffix, and something lies there; so
    the name of an option is not, whatever lies in the working directory. What lies nowhere stays as it is, and so does what
    is stored under one of the keys `NAME_KEYS`.
    """
    if isinstance(settings, dict):
        return {key: value if key in NAME_KEYS else by_content(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [by_content(value) for value in settings]
    if not isinstance(settings, str):
        return settings
    path = _path(settings)
    return settings if path is None else {"content": path_digest(path)}


def _path(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        named = text.startswith("~") or len(path.parts) > 1 or path.is_absolute() or path.suffix
        return path if named and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long for a path, a null in it, a user that does not knows
        return None


Checksums = dict[str, dict[str, Any]]  # path below the folder -> {"bytes", "sha256"}


def are_checksums(content: Any) -> bool:
    """Whether JSON content has the form of `Checksums`; of an edited file it may be anything."""
    return isinstance(content, dict) and all(
        isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)
        for entry in content.values()
    )


def checksums(folder: Path) -> Checksums:
    """Size in bytes and sha256 of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_checksum(path) for path in files}


def file_checksum(path: Path) -> dict[str, Any]:
    """Of one file."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def find_damage(folder: Path, expected: Checksums) -> str | None:
    """The first file that is not what it was, and how; None where all are. Files that are not expected are left alone."""
    if not are_checksums(expected):
        return "its checksums cannot be read"
    for name, stored in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != stored["bytes"]:
            return f"{name} has {size} bytes instead of {stored['bytes']}"
    for name, stored in expected.items():
        try:
            content = file_digest(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if content != stored["sha256"]:
            return f"{name} does not hold what was stored (its sha256 differs)"
    return None
