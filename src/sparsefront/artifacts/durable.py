"""Atomic file writes, disk space, and files that other users made unreadable."""

import ctypes
import errno
import glob
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront.artifacts.lease import lives, process_tag
from sparsefront.errors import NoRoom, Obstacle

if TYPE_CHECKING:
    from torch import Tensor


# Disk space: checked before hours of work, and reported when it runs out.

# messages of safetensors and similar writers, which raise no OSError
FULL = ("No space left on device", "StorageFull", "Disk quota exceeded", "database or disk is full")
# torch's writer only says that a write failed, which may have other causes if the disk has room
TORCH_WRITER = ("PytorchStreamWriter", "inline_container.cc")
NEARLY_FULL_BYTES = 64 * 2**20
ALIKE_BYTES = 2**16  # free bytes below which a disk may be full; the first such disk counts
NOTED = "free_bytes_by_disk"  # attribute of an error


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


def full_disk(error: BaseException, folders: Mapping[Path, str]) -> Obstacle | None:
    """The error message for a full disk; None if the error has another cause.

    A system error names the file, or the one it was to be renamed to. If there is no name (open files, safetensors, torch),
    it is the disk that is full now, or was when `noting_free_space` saw the error.

    Args:
        folders: absolute folders that may have been written to, the run's first -> the setting of each.
    """
    saying = list(filter(says_full, _chain(error)))
    if not saying:
        return None
    if (file := next(filter(None, map(_named, saying)), None)) is not None:
        folder = file if file.is_dir() else file.parent
        inside = [known for known in folders if known in (folder, *folder.parents)]
        settings = folders[max(inside, key=lambda known: len(known.parts))] if inside else ""
        return _full(_there(folder), free_bytes(folder), settings)  # partial files were removed meanwhile
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
    """Context that records the free space at an error, before partial files are removed: see `full_disk`."""
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
    """The settings of folders on a disk: `cache_dir or TMPDIR`."""
    return " or ".join(dict.fromkeys(setting for folder, setting in folders.items() if _disk(folder) == disk))


def _full(folder: Path, free: int, settings: str) -> Obstacle:
    moved = f", or name a folder on another disk with {settings}" if settings else ""
    message = f"the disk is full ({in_units(free)} free now): free some{moved}; the same command then goes on"
    return Obstacle(str(folder), None, message)


def _named(error: BaseException) -> Path | None:
    """The file that could not be written; for copies and links, the second one."""
    if not isinstance(error, OSError):
        return None
    for name in (error.filename2, error.filename):
        if isinstance(name, str | bytes | os.PathLike) and os.fsdecode(name):
            return Path(os.fsdecode(name)).absolute()
    return None


def _disk(folder: Path) -> int:
    """An id that is equal for all folders of one file system."""
    return _there(folder).stat().st_dev


def _there(folder: Path) -> Path:
    """The folder, or its nearest existing ancestor."""
    folder = folder.expanduser().absolute()
    return next(place for place in (folder, *folder.parents) if os.path.exists(place))


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of the folder."""
    return shutil.disk_usage(_there(folder)).free


def in_units(size: int) -> str:
    """Format bytes with three digits and a unit: 1.23 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def says_full(error: BaseException) -> bool:
    """Whether an error, of any library, reports a full disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(text in str(error) for text in (*FULL, *TORCH_WRITER))


PARTIAL = ".partial-"  # prefix of files being written
SAVING = ".partial-"  # in names of folders being written, before the process tag
_HERE, _RENAME_EXCHANGE = -100, 2  # AT_FDCWD, and a flag of renameat2
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # for folders on some network file systems


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Context with a temporary file next to `path`, with the same suffix.

    It is renamed to `path` on success and removed on failure.
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


@contextmanager
def whole_folder(folder: Path, *, replaces: Collection[str], first: str) -> Iterator[Path]:
    """Context with an empty folder whose files become those of `folder` on success; removed on failure.

    It replaces `folder` by one rename, so that a killed process leaves either the old or the new files. If that is impossible
    (subfolders, the working directory, a mount, no write permission next to it), files are renamed one by one.

    Args:
        replaces: files of `folder` to remove if the block did not write them; others stay.
        first: the file to rename first, which tells readers which others belong to it.
    Raises:
        OSError: it cannot be created, or is a file.
    """
    folder = folder.resolve()  # keep links
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    at_once = _may_be_renamed(folder)
    base = folder if at_once else folder / folder.name
    for left_over in base.parent.glob(f"{glob.escape(base.name)}{SAVING}*"):
        if lives(left_over.name.removeprefix(f"{base.name}{SAVING}")) is False:
            shutil.rmtree(left_over, ignore_errors=True)
    temporary = base.with_name(f"{base.name}{SAVING}{process_tag()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with noting_free_space(base.parent):
            temporary.mkdir()
            yield temporary
            sync_tree(temporary)
            if not at_once:
                _replace_files(temporary, folder, replaces=replaces, first=first)
            elif not folder.exists():
                os.rename(temporary, folder)
                _sync_folder(folder.parent)
            else:
                _link_others(folder, temporary, but=replaces)
                _replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _may_be_renamed(folder: Path) -> bool:
    if not folder.exists():
        return True
    inside = any(entry.is_dir() and not entry.is_symlink() for entry in os.scandir(folder))
    taken = inside or os.path.ismount(folder) or folder == Path.cwd().resolve()
    return not taken and os.access(folder.parent, os.W_OK | os.X_OK)


def _replace_folder(source: Path, target: Path) -> None:
    """Rename `source` to `target`; a non-empty old `target` is then named `source`."""
    shutil.copymode(target, source)
    if not any(target.iterdir()):
        os.rename(source, target)
    elif not _exchange(source, target):
        replaced = source.with_name(f"{source.name}.replaced")  # where a kill between two renames leaves it
        os.rename(target, replaced)
        try:
            os.rename(source, target)
        except BaseException:
            os.rename(replaced, target)
            raise
        os.rename(replaced, source)
    _sync_folder(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Atomically exchange two names; returns False if the system does not support it."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    return swap is not None and swap(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0


def _replace_files(source: Path, target: Path, *, replaces: Collection[str], first: str) -> None:
    """Move the files of `source` to `target` one by one."""
    names = sorted((file.name for file in source.iterdir()), key=lambda name: name != first)
    for name in names:
        os.replace(source / name, target / name)
    for name in set(replaces) - set(names):
        (target / name).unlink(missing_ok=True)
    _sync_folder(target)


def _link_others(source: Path, target: Path, *, but: Collection[str]) -> None:
    """Hard-link the files of `source` that `target` lacks."""
    for file in source.iterdir():
        if file.name in but or os.path.lexists(target / file.name):
            continue
        if file.is_symlink():
            os.symlink(os.readlink(file), target / file.name)
        else:
            link_or_copy(file, target / file.name)


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
        path.touch()  # applies the umask, which os.umask cannot read without changing it for all threads
        mode = stat.S_IMODE(path.stat().st_mode)
        save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
        with suppress(PermissionError):  # file systems without modes
            path.chmod(mode)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if not isinstance(error, OSError) and says_full(error):  # safetensors removed the file and names none
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
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


# Directory walks while other processes work there.


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

    def told(error: OSError) -> None:
        if isinstance(error, PermissionError):
            closed(Path(error.filename))

    seen: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    for start in waiting:
        for parent, folders, files in os.walk(start, onerror=told):
            if (place := _place(parent)) is None or place in seen:
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
    if (obstacle := unreadable(folder, otherwise=otherwise)) is not None:
        raise obstacle


def unreadable(path: Path, *, otherwise: str) -> Obstacle | None:
    """The error for a file or folder that this user may not read completely; None if it is readable or missing.

    Args:
        otherwise: a remedy that does not need its owner: "name another cache_dir".
    """
    if (part := _first_denied(path)) is None:
        return None
    try:
        status = part.stat()
        whose, mode = _name(status.st_uid), f" with mode {status.st_mode & 0o777:03o}"
    except OSError:  # vanished meanwhile
        whose, mode = "another user", ""
    which = "it" if part == path else str(part)
    change = f"chmod a+rx {part}" if part in path.absolute().parents else f"chmod -R a+rX {path}"
    remedy = f"`{change}` by {whose} shares it; or {otherwise}"
    return Obstacle(str(path), None, f"cannot be read, since {which} belongs to {whose}{mode}: {remedy}")


def denied(error: PermissionError, *, otherwise: str) -> Obstacle:
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
    above = path.absolute().parents
    if (closed := next((folder for folder in reversed(above) if not os.access(folder, os.X_OK)), None)) is not None:
        return closed if os.path.lexists(closed) else None
    mode = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    if not os.access(path, mode):
        return path if path.exists() else None
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            inside = Path(parent, name)
            mode = os.R_OK | os.X_OK if name in folders else os.R_OK
            if not os.access(inside, mode) and inside.exists():
                return inside
    return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
