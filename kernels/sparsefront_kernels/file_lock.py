"""Locks between the processes of a host, as files, released by the system when a process ends."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

ANYBODY = 0o666  # the processes may belong to several users


class FileLock:
    """One handle of a lock: held shared, alone, or not at all. Excludes other processes and other handles of this one.

    Args:
        path: created if missing, never removed.
    Raises:
        OSError: the file is missing and cannot be created.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, ANYBODY)
            with suppress(OSError):
                os.chmod(path, ANYBODY)  # regardless of the umask
        except FileExistsError:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _locks.add(self)

    def take(self, *, shared: bool = False, wait: bool = True) -> bool:
        """Hold it; returns False if another holder prevents that and `wait` is false.

        Raises:
            OSError: the file system has no locks.
        """
        import fcntl  # not on Windows

        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release it, explicitly, because a forked process may still have the file open; without effect if not held."""
        import fcntl

        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        _locks.discard(self)
        with suppress(OSError):
            os.close(self._file)


_locks: "WeakSet[FileLock]" = WeakSet()


def _close_copies() -> None:
    """Close copies in a forked process, such as a loader's worker, which would hold locks after its parent."""
    for lock in list(_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


@contextmanager
def held_alone(lock: Path, on_wait: Callable[[], object] = bool) -> Iterator[bool]:
    """Context that excludes others with this file; ineffective on a file system without locks.

    Args:
        lock, raises: as in `FileLock`.
        on_wait: called before waiting for another holder.
    Yields:
        whether it had to wait for another holder.
    """
    file, waited = FileLock(lock), False
    try:
        with suppress(OSError):
            waited = not file.take(wait=False)
            if waited:
                on_wait()
                file.take()
        yield waited
    finally:
        file.release()
        file.close()
