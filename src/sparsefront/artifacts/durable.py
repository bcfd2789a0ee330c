"""Files and folders that are there whole or not at all, after a kill and after a power cut: written, synced, then renamed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsefront.artifacts.owner import process_tag

PARTIAL = ".partial-"  # begins the name of a file that is being written
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of folders, on some network file systems


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A neighbor of `path` to write to, with the same ending.

    It becomes `path` when the block ends, and is removed when the block fails.
    """
    temporary = path.with_name(f"{PARTIAL}{process_tag()}-{path.name}")
    try:
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
