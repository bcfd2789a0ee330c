"""Files that are there whole or not at all, room on disks, and what another user keeps to themselves."""

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


# Room on disks: asked for before hours of work, and told where it ended.

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
        NoRoom: less is free.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        room = f"{in_units(free)} free where {what} writes {in_units(needed_bytes)}"
        raise NoRoom(key, folder, f"{room}: free some, name a folder on another disk {remedy}".rstrip())


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


PARTIAL = ".partial-"  # begins the name of a file that is being written
SAVING = ".partial-"  # ends the name of a folder that is being written, before the process that writes
_HERE, _RENAME_EXCHANGE = -100, 2  # AT_FDCWD and a flag of renameat2
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


@contextmanager
def whole_folder(folder: Path, *, replaces: Collection[str], first: str) -> Iterator[Path]:
    """An empty folder to write files to, which become those of `folder` when the block ends; removed when the block fails.

    It takes the place of `folder` by one rename, so that a killed process leaves the files of before, or those of now. Where
    that cannot be (folders in it, the working directory, a mount, no right to write beside it) the files are renamed one by one.

    Args:
        replaces: files of `folder` that go where the block wrote none of that name; whatever else lies in it stays.
        first: the file that is renamed before others: it tells a reader which others belong to it.
    Raises:
        OSError: it cannot be made, or is a file.
    """
    folder = folder.resolve()  # a link stays a link
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
    """`source` becomes `target`; what that was, if it held anything, is then called `source`."""
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
    """Swap two names at once; False where the system or the file system cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    return swap is not None and swap(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0


def _replace_files(source: Path, target: Path, *, replaces: Collection[str], first: str) -> None:
    """The files of `source` become those of `target`, one after the other."""
    names = sorted((file.name for file in source.iterdir()), key=lambda name: name != first)
    for name in names:
        os.replace(source / name, target / name)
    for name in set(replaces) - set(names):
        (target / name).unlink(missing_ok=True)
    _sync_folder(target)


def _link_others(source: Path, target: Path, *, but: Collection[str]) -> None:
    """Give the files of `source` that `target` lacks a second name there."""
    for file in source.iterdir():
        if file.name in but or os.path.lexists(target / file.name):
            continue
        if file.is_symlink():
            os.symlink(os.readlink(file), target / file.name)
        else:
            link_or_copy(file, target / file.name)


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


# What lies below a folder in which other processes work.


def below(folder: Path, pattern: str) -> Iterator[Path]:
    """Files and folders at any depth whose names match, as `folder.rglob(pattern)` gives them. That raises where a folder
    vanishes meanwhile; here it is passed over.
    """
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
    """Files of these names at any depth, behind links to folders too: results of several machines are linked into one folder.
    A folder of such a name is given, too: its reader says that it is no file.

    A folder that several ways lead to, or a link back to one above it, is looked through once, under its own place where that
    lies below `folder`.

    Args:
        ending: of the names of further files; None: of none.
        but: name of links that are not followed.
        closed: gets each folder that this user may not look into; it is passed over.
    """

    def told(error: OSError) -> None:
        if isinstance(error, PermissionError):
            closed(Path(error.filename))

    seen: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    for start in waiting:
        for parent, folders, files in os.walk(start, onerror=told):
            if (place := _place(parent)) is None or place in seen:
                folders.clear()  # os.walk goes down into what is left
                continue
            seen.add(place)
            yield from (Path(parent, name) for name in names if name in files or name in folders)
            if ending is not None:
                yield from (Path(parent, name) for name in files if name.endswith(ending))
            links = (os.path.join(parent, name) for name in folders if name != but)
            waiting.extend(path for path in links if os.path.islink(path))


def _place(folder: str) -> tuple[int, int] | None:
    """Equal for all names of a folder; None where it vanished."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# What lies in a folder of several users and this one may not read: told in one line, with its owner and the remedy.


def require_readable(folder: Path, *, otherwise: str) -> None:
    """Require that this user may read a folder and all below it; one that is not there is right.

    Raises:
        Obstacle: see `unreadable`.
    """
    if (obstacle := unreadable(folder, otherwise=otherwise)) is not None:
        raise obstacle


def unreadable(path: Path, *, otherwise: str) -> Obstacle | None:
    """The complaint about a file or folder that this user may not read, or not all of it; None where it may, or nothing is there.

    Args:
        otherwise: what helps where its owner does not: "name another cache_dir".
    """
    if (part := _first_denied(path)) is None:
        return None
    try:
        found = part.stat()
        whose, mode = _name(found.st_uid), f" with mode {found.st_mode & 0o777:03o}"
    except OSError:  # it has vanished since
        whose, mode = "another user", ""
    which = "it" if part == path else str(part)
    change = f"chmod a+rx {part}" if part in path.absolute().parents else f"chmod -R a+rX {path}"
    remedy = f"`{change}` by {whose} shares it; or {otherwise}"
    return Obstacle(str(path), None, f"cannot be read, since {which} belongs to {whose}{mode}: {remedy}")


def denied(error: PermissionError, *, otherwise: str) -> Obstacle:
    """The complaint about what an error says this user may not do.

    Args:
        otherwise: as of `unreadable`.
    """
    named = None if error.filename is None else Path(os.fsdecode(error.filename))
    if named is not None and (obstacle := unreadable(named, otherwise=otherwise)) is not None:
        return obstacle
    return Obstacle(
        str(named or "files"), None, f"{error.strerror}: make it readable and writable for you, or {otherwise}"
    )


def _first_denied(path: Path) -> Path | None:
    """The outermost folder on the way, else the first file or folder below, that this user may not read."""
    above = path.absolute().parents
    if (closed := next((folder for folder in reversed(above) if not os.access(folder, os.X_OK)), None)) is not None:
        return closed if os.path.lexists(closed) else None
    wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    if not os.access(path, wanted):
        return path if path.exists() else None
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            inside = Path(parent, name)
            wanted = os.R_OK | os.X_OK if name in folders else os.R_OK
            if not os.access(inside, wanted) and inside.exists():
                return inside
    return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
