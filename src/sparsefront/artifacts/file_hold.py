"""Locks on files that end with the process which took them, however it ends.

Several processes may hold a file shared, one alone. `filelock` knows only the latter, and empties the file.
"""

import fcntl
import os
from pathlib import Path


class Hold:
    """A lock on an open file, until `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let others have it; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    __del__ = release


def hold_shared(path: Path) -> Hold | None:
    """Hold a file with others, who cannot have it alone meanwhile; None where one has, or where there is no such file."""
    return _hold(path, os.O_RDONLY, fcntl.LOCK_SH)


def hold_alone(path: Path) -> Hold | None:
    """Hold a file with no others; None where somebody holds it, or where there is no such file."""
    return _hold(path, os.O_RDWR, fcntl.LOCK_EX)


def _hold(path: Path, flags: int, kind: int) -> Hold | None:
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # Removed or replaced between the two calls: the lock would be on a file that nobody else finds.
        held = os.fstat(descriptor).st_ino == os.stat(path).st_ino
    except (BlockingIOError, FileNotFoundError):
        held = False
    except BaseException:
        os.close(descriptor)
        raise
    if not held:
        os.close(descriptor)
        return None
    return Hold(descriptor)
