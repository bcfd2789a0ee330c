"""Worker processes that end with their parent, and code without garbage collection."""

import atexit
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import connection

TERMINATED = 128 + signal.SIGTERM  # exit status after SIGTERM, as in shells
WATCHING = "ends with its parent"  # name of a thread
LOOK_EVERY_S = 1.0  # poll interval for a parent without a sentinel


def end_with_parent() -> None:
    """End this process as soon as its parent of multiprocessing or joblib has ended: workers would otherwise outlive
    a killed parent. A second call does nothing.
    """
    if not any(thread.name == WATCHING for thread in threading.enumerate()):
        threading.Thread(target=_exit_with_parent, name=WATCHING, daemon=True).start()


def end_with_loader(worker: int) -> None:
    """Ignore SIGINT and SIGTERM in a loader's worker: sent to the process group, they are for its parent, which ends its workers.

    One that its parent itself ends by SIGTERM may work on for a minute. Takes the worker's number.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(60))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a program that nobody started this way"
    if parent.sentinel is not None:
        connection.wait([parent.sentinel])
    else:  # joblib on POSIX, where an orphan gets another parent
        while os.getppid() == parent.pid:
            time.sleep(LOOK_EVERY_S)
    os._exit(1)


@cache
def freeze_imports() -> None:
    """Leave out of all later collections what exists now, mostly modules: looking through them takes a third of a second. Further
    calls do nothing, since networks of earlier runs may be garbage by then.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)  # or the last collection misses them, and libraries print what they take for leaks


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection, which afterwards is as it was before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
