"""A lock that many hold together or one holds alone, between the processes of a host.

    <folder>/<name>.turnstile   who wants it alone holds this one, alone, from then on until it is done; others pass through
    <folder>/<name>.lock        shared or alone

A newcomer passes the turnstile first, so those that come later cannot keep out who waits to be alone. Those that hold the lock
look at the turnstile now and then (`wanted_alone`) and give it back. Both are locks of the operating system (flock): they end
with the process, however it ends. The files stay; they are empty.

Source: the turnstile of Downey, "The Little Book of Semaphores", 2016, section 4.2.5, the no-starve readers-writers solution.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from weakref import WeakSet

ANYBODY = 0o666  # the processes may belong to several users


class Gate:
    """One process's access to such a lock; at any time it holds it shared, alone or not at all.

    Args:
        folder: exists, or is made; on a file system of this host.
        name: of the lock.
        about_to_wait: gives what surrounds a wait, such as a context that tells of it.
    Raises:
        OSError: the folder or its files cannot be opened, or know no locks.
    """

    def __init__(
        self, folder: Path, name: str, about_to_wait: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        self._about_to_wait = about_to_wait
        self._turnstile, self._lock = _open(folder / f"{name}.turnstile"), _open(folder / f"{name}.lock")
        _gates.add(self)
        _take(self._turnstile, alone=False)
        _release(self._turnstile)

    def enter_shared(self) -> None:
        """Wait until nobody is alone, nor waits to be."""
        self._wait_for(self._turnstile, alone=False)
        # whoever is alone holds the turnstile until after it has released the lock: this never waits
        self._wait_for(self._lock, alone=False)
        _release(self._turnstile)

    def enter_alone(self) -> None:
        """Wait until the others have left; newcomers wait from now on."""
        self._wait_for(self._turnstile, alone=True)
        try:
            self._wait_for(self._lock, alone=True)
        except BaseException:  # interrupted while it waited
            _release(self._turnstile)
            raise

    def leave(self) -> None:
        """Let others have it; without effect where this process holds nothing."""
        _release(self._lock)
        _release(self._turnstile)

    def wanted_alone(self) -> bool:
        """Whether a process waits to be alone. For one that holds it shared; costs two system calls."""
        if not _take(self._turnstile, alone=False):
            return True
        _release(self._turnstile)
        return False

    def close(self) -> None:
        for file in (self._turnstile, self._lock):
            with suppress(OSError):
                os.close(file)

    def _wait_for(self, file: int, *, alone: bool) -> None:
        if not _take(file, alone=alone):
            with self._about_to_wait():
                _take(file, alone=alone, wait=True)


def _open(file: Path) -> int:
    """For locks reading is enough; only so another user's file in a folder of all users can be opened."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        made = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, ANYBODY)
        with suppress(OSError):
            os.chmod(file, ANYBODY)  # whatever the user's mask takes away
        return made
    return os.open(file, os.O_RDONLY | os.O_CLOEXEC)


def _take(file: int, *, alone: bool, wait: bool = False) -> bool:
    import fcntl  # not on Windows

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _release(file: int) -> None:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)


_gates: "WeakSet[Gate]" = WeakSet()


def _close_copies() -> None:
    """A forked process, such as a loader's worker, has copies of the open files: with them it would hold on after its parent."""
    for gate in list(_gates):
        gate.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
