"""Processes in which a study works on several points side by side, and which end with it, however it ends."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType

TERMINATED = 128 + signal.SIGTERM  # exit status of a program that SIGTERM ended, as shells tell it
TO_COMPILE = "TORCHINDUCTOR_COMPILE_THREADS"
WATCHING = "ends with its parent"  # name of a thread
LOOK_EVERY_S = 1.0  # for a parent that nothing tells of


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes that live as long as the block.

    SIGTERM in the block, as `timeout` and schedulers send it, raises SystemExit with status 143. A block that is left by an
    exception ends the processes at once, in the midst of their work; otherwise what was submitted is finished. Where this process
    is killed, they end too.

    They draw no progress bars, and where they are several, each has one thread for its arithmetic; this process's environment
    says so as long as the block lasts, since they read it when they import.

    Args:
        count: of the processes, each of which works on one task at a time.
    """
    told = {"OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
    if count > 1:
        threads = str(max(1, (os.cpu_count() or 1) // count))
        told |= {"OMP_NUM_THREADS": "1"} | {TO_COMPILE: os.environ.get(TO_COMPILE, threads)}
    environment = {name: os.environ.get(name) for name in told}
    os.environ |= told
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it to the whole group
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.kill()  # in a training SIGTERM would end only that
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def end_with_parent() -> None:
    """From now on this process ends, in the midst of its work, once the process of multiprocessing or joblib that started it has
    ended. Without that one that waits for work, or works, outlives a parent that is killed. A second call does nothing.
    """
    if not any(thread.name == WATCHING for thread in threading.enumerate()):
        threading.Thread(target=_wait_for_the_end_of_the_parent, name=WATCHING, daemon=True).start()


def _wait_for_the_end_of_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a program that nobody started this way"
    if parent.sentinel is not None:
        wait([parent.sentinel])
    else:  # of joblib on POSIX, where an orphan gets another parent
        while os.getppid() == parent.pid:
            time.sleep(LOOK_EVERY_S)
    os._exit(1)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
