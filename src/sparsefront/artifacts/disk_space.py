"""Room on disks: asked for before hours of work, and told where it ended."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparsefront.errors import InvalidSetting

# of safetensors and of HDF5-like writers, which raise no OSError
FULL = ("No space left on device", "StorageFull", "Disk quota exceeded")
# torch's writer says only that a write failed, which on a disk with room means something else
TORCH_WRITER = ("PytorchStreamWriter", "inline_container.cc")
NEARLY_FULL_BYTES = 64 * 2**20


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


def fullest(error: BaseException, folders: list[Path]) -> Path | None:
    """The folder whose disk an error says is full; None where the error is of another kind.

    Args:
        folders: that were written to; the system's for temporary files is looked at besides.
    """
    error = next(filter(_says_full, _chain(error)), None)
    if error is None:
        return None
    named = getattr(error, "filename", None)
    if named is not None and Path(named).is_absolute():
        return Path(named).parent
    emptiest = min([*folders, Path(tempfile.gettempdir())], key=free_bytes)
    only_suspected = not isinstance(error, OSError) and any(text in str(error) for text in TORCH_WRITER)
    return None if only_suspected and free_bytes(emptiest) > NEARLY_FULL_BYTES else emptiest


def free_bytes(folder: Path) -> int:
    """On the disk that holds the folder, or will."""
    folder = folder.expanduser().absolute()
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free


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


def _says_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(text in str(error) for text in (*FULL, *TORCH_WRITER))
