"""A lock of several processes on a file. The system frees it where a process ends, however that ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def held_alone(lock: Path) -> Iterator[bool]:
    """No other process and no other thread is in here with this file; on a disk without locks others may be.

    Args:
        lock: made where it is missing, never removed.
    Yields:
        whether another one was in here first, for which this one waited.
    Raises:
        OSError: the file is missing and cannot be made.
    """
    import fcntl  # not on Windows

    try:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's, in a shared cache
        file = os.open(lock, os.O_RDONLY)
    waited = False
    try:
        with suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield waited
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open still
        os.close(file)
