"""Jobs side by side: their order, what waits, what fails, and when nothing begins any more."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

from sparsefront import processes
from sparsefront.processes import side_by_side


def squared(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number**2


def test_all_jobs_are_done_and_at_most_so_many_at_once():
    running, most = [], []

    def work(job):
        running.append(job)
        most.append(len(running))
        time.sleep(0.01)
        running.remove(job)
        return squared(job)

    with ThreadPoolExecutor(8) as pool:
        found = {done.job: done.found for done in side_by_side(range(9), work, pool, workers=3)}
    assert found == {number: number**2 for number in range(9)} and max(most) <= 3


def test_a_job_waits_for_another_and_stays_away_where_that_one_fails():
    begun = []

    def work(job):
        begun.append(job)
        return squared(job)

    after = {3: 2, 2: 1, 5: -1, 6: 100}  # 100 is none of the jobs: it was done before
    with ThreadPoolExecutor(2) as pool:
        ended = list(side_by_side([3, 2, 5, -1, 1, 6], work, pool, workers=2, after=after))
    assert begun.index(1) < begun.index(2) < begun.index(3) and 5 not in begun
    assert {done.job for done in ended} == {1, 2, 3, 6, -1}
    (failed,) = [done for done in ended if done.error is not None]
    assert failed.job == -1 and failed.found is None and "below 0" in str(failed.error)


def test_nothing_begins_after_the_time_and_what_has_begun_ends(monkeypatch):
    now, both_began = [0.0], Barrier(2)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def work(job):
        both_began.wait()
        now[0] = 2.0
        return job

    with ThreadPoolExecutor(2) as pool:
        ended = [done.job for done in side_by_side(range(5), work, pool, workers=2, ends_at=1.0)]
    assert sorted(ended) == [0, 1]
