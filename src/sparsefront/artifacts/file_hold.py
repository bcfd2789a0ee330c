"""Locks on files that end with the process which took them, however it ends.

Several processes may hold a file shared, one alone. `filelock` knows only the latter, and empties the file. On a file system
without such locks every process may read, and none can lock a file exclusively.
"""

import fcntl
import os
from pathlib import Path


class Hold:
    """A lock on an open file, until `release`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor

    def release(self) -> None:
        """Let others have it; a second call does nothing."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    __del__ = release


def hold_shared(path: Path) -> Hold | None:
    """Hold a file with others, which cannot lock it exclusively meanwhile; None where one has, or where there is no such file."""
    return _hold(path, os.O_RDONLY, fcntl.LOCK_SH)


def hold_alone(path: Path) -> Hold | None:
    """Hold a file with no others; None where another process holds it, or where there is no such file."""
    # For writing: some network file systems lock by oneself only what is open for that.
    return _hold(path, os.O_RDWR, fcntl.LOCK_EX)


def _hold(path: Path, flags: int, kind: int) -> Hold | None:
    try:
        hold = Hold(os.open(path, flags))
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(hold.descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if kind == fcntl.LOCK_EX or isinstance(error, BlockingIOError):
            hold.release()
            return None
    try:
        # Removed or replaced between the two calls: the lock would be on a file that no other process finds.
        there = os.path.samestat(os.fstat(hold.descriptor), os.stat(path))
    except FileNotFoundError:
        there = False
    if not there:
        hold.release()
    return hold if there else None
