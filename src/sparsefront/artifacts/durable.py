"""Atomic file writes, disk space, and files that other users made unreadable."""

import errno
import glob
import os
import pwd
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront.errors import NoRoom, Obstacle

if TYPE_CHECKING:
    from torch import Tensor


# Disk space: checked before hours of work, and reported when it runs out.

# messages of safetensors and similar writers, which raise no OSError
FULL = ("No space left on device", "StorageFull", "Disk quota exceeded", "database or disk is full")
# torch's writer only says that a write failed, which may have other causes if the disk has room
TORCH_WRITER = ("PytorchStreamWriter", "inline_container.cc")
NEARLY_FULL_BYTES = 64 * 2**20


def require_space(folder: Path, needed_bytes: int, *, key: str, what: str, remedy: str = "") -> None:
    """Raise early if something will not fit on the disk.

    Args:
        folder: where it will be written; need not exist yet.
        key: the setting of the location; `what` will be written; `remedy`: an alternative, beginning with "or".
    Raises:
        NoRoom: not enough free space.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        room = f"{in_units(free)} free where {what} writes {in_units(needed_bytes)}"
        raise NoRoom(key, folder, f"{room}: free some, name a folder on another disk {remedy}".rstrip())


@contextmanager
def naming_full_disk(file: Path) -> Iterator[None]:
    """Context in which a full disk raises an OSError that names the file, also in libraries whose errors name none."""
    try:
        yield
    except Exception as error:
        suspected = any(text in str(error) for text in TORCH_WRITER) and free_bytes(file) < NEARLY_FULL_BYTES
        if (_says_full(error) or suspected) and _find_file(error) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from error
        raise


def full_disk(error: BaseException, folders: Mapping[Path, str]) -> Obstacle | None:
    """The error message for a full disk, if no file is named the fullest of these; None if the error has another cause.

    Args:
        folders: absolute folders that may have been written to -> the setting of each.
    """
    errors: list[BaseException] = [error]
    while (cause := errors[-1].__cause__ or errors[-1].__context__) is not None:
        errors.append(cause)
    errors = list(filter(_says_full, errors))
    if not errors:
        return None
    file = next(filter(None, map(_find_file, errors)), None)
    if file is None:
        folder = min(folders, key=free_bytes)
    else:
        folder = _existing(file if file.is_dir() else file.parent)
    inside = [known for known in folders if known in (folder, *folder.parents)]
    moved = ""
    if inside:
        moved = f", or name a folder on another disk with {folders[max(inside, key=lambda known: len(known.parts))]}"
    free = in_units(free_bytes(folder))
    message = f"the disk is full ({free} free now): free some{moved}; the same command then goes on"
    return Obstacle(str(folder), None, message)


def _says_full(error: BaseException) -> bool:
    """Whether an error, of any library, reports a full disk."""
    of_system = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return of_system or any(text in str(error) for text in FULL)


def _find_file(error: BaseException) -> Path | None:
    """The file that could not be written; for copies and links, the second one."""
    names = (error.filename2, error.filename) if isinstance(error, OSError) else ()
    name = next((name for name in names if isinstance(name, str | bytes | os.PathLike) and os.fsdecode(name)), None)
    return None if name is None else Path(os.fsdecode(name)).absolute()


def _existing(path: Path) -> Path:
    """The path, or its nearest existing ancestor."""
    path = path.expanduser().absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of a file or folder, which need not exist."""
    return shutil.disk_usage(_existing(path)).free


def in_units(size: int) -> str:
    """Format bytes with three digits and a unit: 1.23 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


LEFT_OVER_S = 86_400  # age of what no process writes any more
PARTIAL = ".partial-"  # in names of what is being written, before a text that no other process uses
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # for folders on some network file systems


def unique() -> str:
    """A text that no other process uses, for names of what is being written."""
    return uuid.uuid4().hex[:12]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Context with a temporary file next to `path`, with the same suffix.

    It is renamed to `path` on success and removed on failure.
    """
    temporary = path.with_name(f"{PARTIAL}{unique()}-{path.name}")
    try:
        with naming_full_disk(path):
            yield temporary
            sync_file(temporary)
            rename_synced(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(folder: Path, *, replaces: Collection[str], first: str) -> Iterator[Path]:
    """Context with an empty folder that becomes `folder` on success, removed on failure.

    A new folder appears at once. Into one that exists, which may hold other files, files are moved one by one.

    Args:
        replaces: files of `folder` to remove if the block did not write them; others stay.
        first: the file to move first, which tells readers which others belong to it: a process that is killed while it moves
            files leaves a mixture.
    Raises:
        OSError: it cannot be created, or is a file.
    """
    is_new = not os.path.lexists(folder)
    parent = folder.absolute().parent if is_new else folder
    parent.mkdir(parents=True, exist_ok=True)
    for left_over in parent.glob(f"{PARTIAL}*-{glob.escape(folder.name)}" if is_new else f"{PARTIAL}*"):
        with suppress(FileNotFoundError):  # younger ones may be of another process, which just ends
            if time.time() - left_over.stat().st_mtime > LEFT_OVER_S:
                shutil.rmtree(left_over, ignore_errors=True)
    temporary = parent / f"{PARTIAL}{unique()}-{folder.name}"
    try:
        with naming_full_disk(folder):
            temporary.mkdir()
            yield temporary
            sync_tree(temporary)
            if not (is_new and _rename_to_new(temporary, folder)):
                names = sorted((file.name for file in temporary.iterdir()), key=lambda name: name != first)
                for name in names:
                    os.replace(temporary / name, folder / name)
                for name in set(replaces) - set(names):
                    (folder / name).unlink(missing_ok=True)
                temporary.rmdir()
                _sync_folder(folder)
            _sync_folder(folder.absolute().parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _rename_to_new(source: Path, target: Path) -> bool:
    """Rename a folder; False if another process made a target with files meanwhile."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def rename_synced(source: Path, target: Path) -> None:
    """Rename a synced file or folder and sync the rename; replaces the target."""
    os.replace(source, target)
    _sync_folder(target.parent)


def sync_tree(folder: Path) -> None:
    """Sync everything below the folder to disk."""
    for path in folder.rglob("*"):
        _sync_folder(path) if path.is_dir() else sync_file(path)
    _sync_folder(folder)


def sync_file(path: Path) -> None:
    """Sync a file's content to disk.

    Raises:
        OSError: it could not be written, for example because the disk is full.
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
    """Write a safetensors file with permissions from the umask, because several users may share a cache.

    safetensors itself creates files that only their owner can read, whatever the umask.

    Args:
        path: an existing file is replaced, not overwritten, since it may have other names.
        tensors: name -> tensor on any device, contiguous, without shared memory.
        metadata: strings for the file's header.
    Raises:
        OSError: the disk is full; names the file, which is removed.
    """
    from safetensors.torch import save_file

    path.unlink(missing_ok=True)
    try:
        with naming_full_disk(path):
            path.touch()  # applies the umask, which os.umask cannot read without changing it for all threads
            mode = stat.S_IMODE(path.stat().st_mode)
            save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
        with suppress(PermissionError):  # file systems without modes
            path.chmod(mode)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it if the file system has no hard links.

    An existing target is replaced, not overwritten, since it may have other names.
    """
    if os.path.exists(target) and os.path.samefile(source, target):
        return
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def below(folder: Path, pattern: str) -> Iterator[Path]:
    """Like `folder.rglob(pattern)`, but skips folders that vanish meanwhile instead of raising."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if fnmatchcase(name, pattern):
                yield Path(parent, name)


def below_with_links(
    folder: Path,
    names: Collection[str],
    *,
    ending: str | None = None,
    but: str,
    closed: Callable[[Path], None] = lambda folder: None,
) -> Iterator[Path]:
    """Files of these names at any depth, also behind links to folders, because results of several machines may be linked into
    one folder. Includes folders of such a name, which readers reject.

    Folders reachable in several ways, including cycles, are visited once, preferring their real path if it is below `folder`.

    Args:
        ending: suffix of additional files; None = none.
        but: name of links that are not followed.
        closed: receives each unreadable folder, which is skipped.
    """

    def report(error: OSError) -> None:
        if isinstance(error, PermissionError):
            closed(Path(error.filename))

    seen: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    for start in waiting:
        for parent, folders, files in os.walk(start, onerror=report):
            place = _place(parent)
            if place is None or place in seen:
                folders.clear()  # os.walk does not descend then
                continue
            seen.add(place)
            yield from (Path(parent, name) for name in names if name in files or name in folders)
            if ending is not None:
                yield from (Path(parent, name) for name in files if name.endswith(ending))
            links = (os.path.join(parent, name) for name in folders if name != but)
            waiting.extend(path for path in links if os.path.islink(path))


def _place(folder: str) -> tuple[int, int] | None:
    """An id that is equal for all names of a folder; None if it vanished."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Unreadable files in a folder shared by several users: reported in one line, with owner and remedy.


def require_readable(folder: Path, *, otherwise: str) -> None:
    """Check that this user may read a folder and everything below it; a missing one is accepted.

    Raises:
        Obstacle: see `unreadable`.
    """
    obstacle = unreadable(folder, otherwise=otherwise)
    if obstacle is not None:
        raise obstacle


def unreadable(path: Path, *, otherwise: str) -> Obstacle | None:
    """The error for a file or folder that this user may not read completely; None if it is readable or missing.

    Args:
        otherwise: a remedy that does not need its owner: "name another cache_dir".
    """
    part = _first_denied(path)
    if part is None:
        return None
    whose, mode = "another user", ""
    with suppress(OSError):  # vanished meanwhile
        status = part.stat()
        whose, mode = _name(status.st_uid), f" with mode {status.st_mode & 0o777:03o}"
    which = "it" if part == path else str(part)
    change = f"chmod a+rx {part}" if part in path.absolute().parents else f"chmod -R a+rX {path}"
    remedy = f"`{change}` by {whose} shares it; or {otherwise}"
    return Obstacle(str(path), None, f"cannot be read, since {which} belongs to {whose}{mode}: {remedy}")


def explain_denial(error: PermissionError, *, otherwise: str) -> Obstacle:
    """The error for a PermissionError.

    Args:
        otherwise: as in `unreadable`.
    """
    path = None if error.filename is None else Path(os.fsdecode(error.filename))
    if path is not None and (obstacle := unreadable(path, otherwise=otherwise)) is not None:
        return obstacle
    return Obstacle(
        str(path or "files"), None, f"{error.strerror}: make it readable and writable for you, or {otherwise}"
    )


def _first_denied(path: Path) -> Path | None:
    """The first unreadable folder on the path, else the first unreadable file or folder below it."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK):
            return folder if os.path.lexists(folder) else None
    inside = (Path(parent, name) for parent, *names in os.walk(path) for name in (*names[0], *names[1]))
    for part in (path, *inside):
        if not os.access(part, os.R_OK | os.X_OK if part.is_dir() else os.R_OK) and part.exists():
            return part
    return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
