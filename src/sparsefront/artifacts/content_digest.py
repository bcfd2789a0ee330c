"""Content digests and checksums: equal bytes have equal digests wherever they are, and damage is detected."""

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

# Cache keys: a digest of everything that the content depends on.

DIGITS = 16


def digest(content: Any) -> str:
    """Short sha256 of JSON-able content, independent of key order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed versions; None if a distribution is missing.

    Stage keys contain the versions of libraries that their result depends on, instead of their sources.
    """
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


# Memo on disk of what was derived from sources and large files, so that the next process need not read them.

MOST = 20_000  # entries; then it starts over, since most are of edited files


class DigestMemo:
    """JSON-able values by a key that identifies content and computation. Losing it only costs time."""

    def __init__(self, file: Path) -> None:
        self.file, self._known, self._new = file, _read_memo(file), {}

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = self._new[key] = make()
        return self._known[key]

    def save(self) -> None:
        """Add new entries to the file, keeping those written by other processes."""
        if not self._new:
            return
        entries = _read_memo(self.file) | self._new
        entries, self._new = self._new if len(entries) > MOST else entries, {}
        with suppress(OSError):  # a full or read-only disk
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.file) as new:
                new.write_text(json.dumps(entries), encoding="utf-8")


_active: ContextVar[DigestMemo | None] = ContextVar("_active", default=None)


@contextmanager
def remembering(file: Path) -> Iterator[None]:
    """Context in which `remembered` reads and extends this file."""
    memo = _memo(file)
    token = _active.set(memo)
    try:
        yield
    finally:
        _active.reset(token)
        memo.save()


def remembered(key: str, make: Callable[[], Any]) -> Any:
    """The JSON-able value of a key, computed if no earlier process did, or nothing is stored."""
    memo = _active.get()
    return make() if memo is None else memo.get(key, make)


_memo = cache(DigestMemo)


def _read_memo(file: Path) -> dict[str, Any]:
    try:
        found = read_json_bounded(file)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


READ_AT_MOST = 2**31  # bytes of a folder; larger ones are identified by their listing
MANY = 10_000  # files of a folder
LARGE = 2**20  # size from which a file's digest is stored across processes
SETTLED_NS = 2 * 10**9

_listings: dict[Path, tuple[dict[str, int], str]] = {}  # root -> (mtimes of its folders, digest)


def file_digest(path: Path) -> str:
    """sha256 of a file in hexadecimal, streamed, and cached per process until the file changes."""
    found = path.stat()
    return _read_digest(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def listing_digest(root: Path) -> str:
    """sha256 over relative paths and sizes of all files below `root`.

    For folders of a hundred gigabytes and more, which would take longer to read than a training. Folders with `MANY` files are
    listed once per process, until files are added or removed.
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
    """Digest of a file's bytes; for a folder, of names and bytes of all files below it, or sizes from `READ_AT_MOST` on."""
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

    # A file written just now may change again within the same clock tick.
    if size < LARGE or time.time_ns() - max(times_ns) < SETTLED_NS:
        return read()
    return remembered(f"file {path.resolve()} {inode} {size} {times_ns}", read)


def _folders(root: Path) -> list[str]:
    """The folder and all folders below it, each once; follows links, as torchvision does."""
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
    """Modification time of a folder; None if it is gone."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


NAME_KEYS = ("_target_", "hub")  # names of code and of downloads, never paths


def by_content(settings: Any) -> Any:
    """Replace every string that names an existing file or folder by the digest of its content.

    A string counts as a path if it begins with `~`, contains a slash or ends with a suffix, and something exists there, so
    option names are not affected by the working directory. Strings under one of `NAME_KEYS` are not changed.
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
    except (OSError, ValueError, RuntimeError):  # too long, contains a null, or an unknown user after `~`
        return None


Checksums = dict[str, dict[str, Any]]  # relative path -> {"bytes", "sha256"}


def are_checksums(content: Any) -> bool:
    """Whether JSON content, possibly from an edited file, is a valid `Checksums`."""
    return isinstance(content, dict) and all(
        isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)
        for entry in content.values()
    )


def checksums(folder: Path) -> Checksums:
    """Size in bytes and sha256 of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_checksum(path) for path in files}


def file_checksum(path: Path) -> dict[str, Any]:
    """Checksum of one file."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def find_damage(folder: Path, expected: Checksums) -> str | None:
    """The first file that differs from its checksum, and how; None if none does. Additional files are ignored."""
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
