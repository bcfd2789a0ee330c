"""An inter-process lock on a file, released by the system when its process ends."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def held_alone(lock: Path, on_wait: Callable[[], object] = bool) -> Iterator[bool]:
    """Context that excludes other processes and threads with this file; ineffective on a file system without locks.

    Args:
        lock: created if missing, never removed.
        on_wait: called before waiting for another holder.
    Yields:
        whether it had to wait for another holder.
    Raises:
        OSError: the file is missing and cannot be created.
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
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield waited
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # explicitly, because a forked process may still have the file open
        os.close(file)
