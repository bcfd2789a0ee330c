"""Content digests and checksums: equal bytes have equal digests wherever they are, and damage is detected."""

import hashlib
import importlib.metadata
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.durable import whole_file

log = logging.getLogger(__name__)

DIGITS = 16


def digest(content: Any) -> str:
    """Short sha256 of JSON-able content, independent of key order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed versions; None if a distribution is missing.

    Stage keys contain the versions of libraries that their result depends on, instead of their sources.
    """
    installed = {}
    for name in distributions:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    return installed


# Memo on disk of what was derived from sources and large files, so that the next process need not read them.

IN_CACHE = Path("data", "digests.json")  # below cache_dir
MOST = 20_000  # entries; then it starts over, since most are of edited files
_active: ContextVar[dict[str, Any] | None] = ContextVar("_active", default=None)


@contextmanager
def remembering(file: Path) -> Iterator[None]:
    """Context in which `load_or_make` reads and extends this file. Losing it only costs time."""
    known = _read_memo(file)
    before, token = set(known), _active.set(known)
    try:
        yield
    finally:
        _active.reset(token)
        added = {key: value for key, value in known.items() if key not in before}
        if added:
            entries = _read_memo(file) | added  # other processes may have added some
            with suppress(OSError):  # a full or read-only disk
                file.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(file) as new:
                    new.write_text(json.dumps(added if len(entries) > MOST else entries), encoding="utf-8")


def load_or_make(key: str, make: Callable[[], Any]) -> Any:
    """The JSON-able value of a key, which identifies content and computation: made if no earlier process did, or nothing is
    stored.
    """
    known = _active.get()
    if known is None:
        return make()
    if key not in known:
        known[key] = make()
    return known[key]


def _read_memo(file: Path) -> dict[str, Any]:
    try:
        memo = read_json_bounded(file)
    except ValueError:
        return {}
    return memo if isinstance(memo, dict) else {}


LARGE = 2**20  # size from which a file's digest is remembered
READERS = 8  # threads
LONG = 2**31  # bytes to read from which a line says so
SETTLED_NS = 2 * 10**9  # age at which a file can no longer change within the same clock tick
_contents: dict[str, str] = {}  # what this process has read


def file_digest(path: Path) -> str:
    """sha256 of a file in hexadecimal, streamed; of large files remembered until they change."""
    facts = _facts(path.stat())
    return _once(f"file {path.resolve()} {facts}", [facts], lambda: _read(path)) if facts[0] >= LARGE else _read(path)


def path_digest(path: Path) -> str:
    """Digest of a file's bytes; for a folder, of names and bytes of all files below it, remembered until one changes."""
    if path.is_file():
        return file_digest(path)
    listings = {os.path.relpath(folder, path): _listing(folder) for folder in sorted(_folders(path))}
    facts = [file for listing in listings.values() for file in listing.values()]

    def read() -> str:
        size = sum(file[0] for file in facts)
        if size >= LONG:
            log.info("%s: reading %.0f GB once, to recognize these files later", path, size / 1e9)
        parts = [[folder, _folder_digest(path / folder, sorted(listing))] for folder, listing in listings.items()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    return _once(f"folder {os.path.realpath(path)} {digest(listings)}", facts, read)


Facts = tuple[int, int, int, int]
"""Size, inode, and times of modification and change in ns: no rewritten file has the same, since nothing sets the last."""


def _facts(status: os.stat_result) -> Facts:
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _once(key: str, files: Iterable[Facts], read: Callable[[], str]) -> str:
    """The content under a key, read once by all processes if the files are settled."""
    now = time.time_ns()
    if any(now - max(times) < SETTLED_NS for _, _, *times in files):
        return read()
    if key not in _contents:
        _contents[key] = load_or_make(key, read)
    return _contents[key]


def _read(path: str | Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _listing(folder: str) -> dict[str, Facts]:
    """Name -> facts of each file in a folder."""
    with os.scandir(folder) as entries:
        return {entry.name: _facts(entry.stat()) for entry in entries if entry.is_file()}


def _folder_digest(folder: Path, names: list[str]) -> str:
    """Over names and bytes of a folder's files, several of which are read at a time, for disks that answer late."""
    with ThreadPoolExecutor(READERS) as readers:
        contents = list(readers.map(_read, [folder / name for name in names]))
    return hashlib.sha256(json.dumps([names, contents]).encode()).hexdigest()


def _folders(root: Path) -> list[str]:
    """The folder and all folders below it, each once; follows links, as torchvision does."""
    folders, seen = [], set()
    for folder, below, _ in os.walk(root, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            below.clear()
        else:
            seen.add(place)
            folders.append(folder)
    return folders


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
        is_path_like = text.startswith("~") or len(path.parts) > 1 or path.is_absolute() or path.suffix
        return path if is_path_like and path.exists() else None
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
        try:
            content = file_digest(path)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if content != stored["sha256"]:
            return f"{name} does not hold what was stored (its sha256 differs)"
    return None
