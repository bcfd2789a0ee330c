"""Files and folders that are there whole or not at all, after a kill and after a power cut: written, synced, then renamed."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront.artifacts.disk_space import noting_free_space, says_full
from sparsefront.artifacts.owner import process_tag

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL = ".partial-"  # begins the name of a file that is being written
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of folders, on some network file systems


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A neighbor of `path` to write to, with the same ending.

    It becomes `path` when the block ends, and is removed when the block fails.
    """
    temporary = path.with_name(f"{PARTIAL}{process_tag()}-{path.name}")
    try:
        with noting_free_space(path.parent):
            yield temporary
            sync_file(temporary)
            rename_synced(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rename_synced(source: Path, target: Path) -> None:
    """Rename what is synced itself, and sync the rename; the target is replaced."""
    os.replace(source, target)
    _sync_folder(target.parent)


def sync_tree(folder: Path) -> None:
    """Everything below the folder is on the disk when this returns."""
    for path in folder.rglob("*"):
        _sync_folder(path) if path.is_dir() else sync_file(path)
    _sync_folder(folder)


def sync_file(path: Path) -> None:
    """The file's content is on the disk when this returns.

    Raises:
        OSError: it could not be written, for instance because the disk is full.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    try:
        sync_file(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def save_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file that the umask lets others read, as it does every other file: several users may share a cache.

    safetensors itself makes files that their owner alone can read, whatever the umask.

    Args:
        path: a file that is there, perhaps under another name too, is not written into but replaced.
        tensors: name -> tensor on any device, contiguous, each with memory of its own.
        metadata: texts for the file's header.
    Raises:
        OSError: the disk is full; names the file. No file is left.
    """
    from safetensors.torch import save_file

    path.unlink(missing_ok=True)
    try:
        path.touch()  # asks for the umask what os.umask cannot tell without changing it, for all threads
        mode = stat.S_IMODE(path.stat().st_mode)
        save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
        with suppress(PermissionError):  # of our own file: the file system has no modes
            path.chmod(mode)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if not isinstance(error, OSError) and says_full(
            error
        ):  # safetensors has removed what it wrote, and names no file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """A second name for a file, which takes no room; a copy where the file system has no hard links.

    A file that the target names already is not written into, since it may have other names too: the target is replaced.
    """
    if os.path.exists(target) and os.path.samefile(source, target):
        return
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
