"""Room on disks: asked for before hours of work, and told where it ended."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparsefront.errors import InvalidSetting, Obstacle

# of safetensors and of HDF5-like writers, which raise no OSError
FULL = ("No space left on device", "StorageFull", "Disk quota exceeded", "database or disk is full")
# torch's writer says only that a write failed, which on a disk with room means something else
TORCH_WRITER = ("PytorchStreamWriter", "inline_container.cc")
NEARLY_FULL_BYTES = 64 * 2**20
ALIKE_BYTES = 2**16  # what a disk without room may have left; of several such disks the first one counts
NOTED = "free_bytes_by_disk"  # attribute of an error


def require_space(folder: Path, needed_bytes: int, *, key: str, what: str, remedy: str = "") -> None:
    """Raise before the start of what does not fit on the disk.

    Args:
        folder: where it will be written; it need not be there yet.
        key: the setting that names the disk; `what` writes there; `remedy`: what helps besides, beginning with "or".
    Raises:
        InvalidSetting: less is free.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        room = f"{in_units(free)} free where {what} writes {in_units(needed_bytes)}"
        raise InvalidSetting(key, folder, f"{room}: free some, name a folder on another disk {remedy}".rstrip())


def full_disk(error: BaseException, folders: Mapping[Path, str]) -> Obstacle | None:
    """The complaint about the disk that an error says is full; None where the error is of another kind.

    An error of the system names the file, or another one that it was to become. Where nobody named any (writes to open files,
    safetensors, torch), it is the disk that is full now, or was when `noting_free_space` saw the error.

    Args:
        folders: that may have been written to, absolute, those of the run first -> the setting that names another.
    """
    saying = list(filter(says_full, _chain(error)))
    if not saying:
        return None
    if (file := next(filter(None, map(_named, saying)), None)) is not None:
        folder = file if file.is_dir() else file.parent
        inside = [known for known in folders if known in (folder, *folder.parents)]
        settings = folders[max(inside, key=lambda known: len(known.parts))] if inside else ""
        return _full(_there(folder), free_bytes(folder), settings)  # what was half-written there is gone
    noted: dict[int, int] = {}
    for one in _chain(error):
        noted |= getattr(one, NOTED, {})
    free = {folder: min(noted.get(_disk(folder), sys.maxsize), free_bytes(folder)) for folder in folders}
    emptiest = min(free, key=lambda folder: free[folder] // ALIKE_BYTES)
    if free[emptiest] > NEARLY_FULL_BYTES:
        if all(_is_only_suspected(one) for one in saying):
            return None
        firsts = {_disk(folder): folder for folder in reversed(free)}
        listed = ", ".join(
            f"{in_units(free[first])} at {first} ({_settings_on(disk, folders)})"
            for disk, first in reversed(firsts.items())
        )
        remedy = "free some where it was, or name a folder on another disk with the setting in brackets"
        return Obstacle("disk", None, f"one was full, and nothing says which; free now: {listed}: {remedy}")
    return _full(emptiest, free_bytes(emptiest), _settings_on(_disk(emptiest), folders))


@contextmanager
def noting_free_space(folder: Path) -> Iterator[None]:
    """Where what is half-written gets removed at an error, note what its disk had left before that: see `full_disk`."""
    try:
        yield
    except Exception as error:
        if any(map(says_full, _chain(error))):
            noted = vars(error).setdefault(NOTED, {})
            noted[_disk(folder)] = min(noted.get(_disk(folder), sys.maxsize), free_bytes(folder))
        raise


def _is_only_suspected(error: BaseException) -> bool:
    return not isinstance(error, OSError) and any(text in str(error) for text in TORCH_WRITER)


def _settings_on(disk: int, folders: Mapping[Path, str]) -> str:
    """Those that name folders on a disk: `cache_dir or TMPDIR`."""
    return " or ".join(dict.fromkeys(setting for folder, setting in folders.items() if _disk(folder) == disk))


def _full(folder: Path, free: int, settings: str) -> Obstacle:
    moved = f", or name a folder on another disk with {settings}" if settings else ""
    told = f"the disk is full ({in_units(free)} free now): free some{moved}; the same command then goes on"
    return Obstacle(str(folder), None, told)


def _named(error: BaseException) -> Path | None:
    """The file that could not be written, of a copy and a link the second one."""
    if not isinstance(error, OSError):
        return None
    for name in (error.filename2, error.filename):
        if isinstance(name, str | bytes | os.PathLike) and os.fsdecode(name):
            return Path(os.fsdecode(name)).absolute()
    return None


def _disk(folder: Path) -> int:
    """The same number for all folders of one file system."""
    return _there(folder).stat().st_dev


def _there(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there already."""
    folder = folder.expanduser().absolute()
    return next(place for place in (folder, *folder.parents) if os.path.exists(place))


def free_bytes(folder: Path) -> int:
    """On the disk that holds the folder, or will."""
    return shutil.disk_usage(_there(folder)).free


def in_units(size: int) -> str:
    """Bytes with three digits and a unit: 1.23 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def says_full(error: BaseException) -> bool:
    """Whether an error is about a full disk, in the words of whoever raised it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(text in str(error) for text in (*FULL, *TORCH_WRITER))
