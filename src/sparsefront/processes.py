"""Processes that work side by side on one machine, and end with the one that started them."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from types import FrameType
from typing import Generic, TypeVar

# Processes in which a study works on several points side by side, and which end with it, however it ends.

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
        connection.wait([parent.sentinel])
    else:  # of joblib on POSIX, where an orphan gets another parent
        while os.getppid() == parent.pid:
            time.sleep(LOOK_EVERY_S)
    os._exit(1)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


# Jobs that several processes do side by side: trainings share a GPU well, and what is timed has it to itself.
#
# What has begun is finished, and nothing begins once the time is over, so that a study goes on in its next call.

Job = TypeVar("Job", bound=Hashable)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Done(Generic[Job, Found]):
    """A job that ended.

    Args:
        found: what its work returned; None where it failed.
        error: why it failed; None where it did not.
    """

    job: Job
    found: Found | None
    error: BaseException | None


def side_by_side(
    jobs: Sequence[Job],
    work: Callable[[Job], Found],
    pool: Executor,
    *,
    workers: int,
    after: Mapping[Job, Job] | None = None,
    ends_at: float = float("inf"),
) -> Iterator[Done[Job, Found]]:
    """Do the jobs, in their order as far as they need not wait.

    Args:
        work: of one job; it and the job are pickled where `pool` has processes.
        workers: jobs that run at once.
        after: job -> another that it waits for, where that one is in `jobs`. If it fails, this one is left for the next call.
        ends_at: `time.monotonic()` after which nothing begins any more.
    Returns:
        the jobs as they end. Those that never began are in none.
    """
    waiting, after, missing = list(jobs), dict(after or {}), set(jobs)
    running: dict[Future, Job] = {}
    while True:
        while len(running) < workers and time.monotonic() < ends_at:
            job = next((job for job in waiting if after.get(job) not in missing), None)
            if job is None:
                break
            waiting.remove(job)
            running[pool.submit(work, job)] = job
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job, error = running.pop(future), future.exception()
            if error is None:
                missing.remove(job)
            yield Done(job, None if error else future.result(), error)
