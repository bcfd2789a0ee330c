"""Worker processes that end with their parent, jobs in parallel, and code without garbage collection."""

import gc
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

# A pool of processes that end with their parent, however it ends.

TERMINATED = 128 + signal.SIGTERM  # exit status after SIGTERM, as in shells
TO_COMPILE = "TORCHINDUCTOR_COMPILE_THREADS"
WATCHING = "ends with its parent"  # name of a thread
LOOK_EVERY_S = 1.0  # poll interval for a parent without a sentinel


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes that live as long as the context.

    SIGTERM inside, as `timeout` and schedulers send it, raises SystemExit with status 143. An exception kills the processes
    at once; otherwise submitted work is finished. If this process is killed, they end too.

    They show no progress bars, and with several of them each has one compute thread; this is set in this process's environment
    inside the context, which they inherit.

    Args:
        count: number of processes, each of which works on one task at a time.
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
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` signals the whole process group
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.kill()  # SIGTERM in a training would only end the training
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


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


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


# Parallel jobs. Jobs that have started are finished, and none starts after the time limit: a study continues in its next call.

Job = TypeVar("Job", bound=Hashable)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Done(Generic[Job, Found]):
    """A job that ended.

    Args:
        found: its return value; None if it failed.
        error: its exception; None if it succeeded.
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
    """Run jobs in parallel, in order except for those that have to wait.

    Args:
        work: runs one job; both are pickled if `pool` has processes.
        workers: number of jobs to run at once.
        after: job -> another in `jobs` that it waits for. If that one fails, this one is not run.
        ends_at: `time.monotonic()` after which no job starts.
    Returns:
        the jobs as they end, without those that never started.
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


# Garbage collection.


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
