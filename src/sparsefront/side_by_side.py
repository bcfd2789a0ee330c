"""Jobs that several processes do side by side: trainings share a GPU well, and what is timed has it to itself.

What has begun is finished, and nothing begins once the time is over, so that a study goes on in its next call.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

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
