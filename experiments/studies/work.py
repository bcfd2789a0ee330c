"""The work of a call: which points are left, in which order, and the processes that do them."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from experiments.studies import definition, rows
from experiments.studies.definition import Point, Study
from experiments.studies.finish import finish

ACCURACY = "none"  # the kernel option of points that are not timed
UNTIMED = ("kernel=none", "measure.latency=false", "measure.batch_size=256", "optimize=[val_masked]")

DIGEST = "dense_weights_sha256"
PLACES = ("model.path", "dataset.path", "cache_dir", "results_dir")

Job = tuple[rows.Key, list[str]]  # what, and the overrides of run.py


@dataclass
class Queue:
    """What is left to do, in order; a point waits for its dense network.

    Args:
        needs: point -> its dense point, where that one is not finished.
        earlier: jobs that have a line -> digest of its dense weights; they are done again where this call has others.
        denses: dense point -> digest of the weights in its line, where it has one.
    """

    jobs: dict[rows.Key, list[str]] = field(default_factory=dict)
    needs: dict[Point, Point] = field(default_factory=dict)
    earlier: dict[rows.Key, tuple[list[str], str]] = field(default_factory=dict)
    denses: dict[Point, str] = field(default_factory=dict)

    def take(self) -> Job | None:
        """The first job that can begin; None where all wait."""
        ready = next((key for key in self.jobs if key[0] not in self.needs), None)
        return None if ready is None else (ready, self.jobs.pop(ready))

    def finished(self, point: Point, digest: str | None) -> None:
        """Points that waited for this one can begin; those with a line of another dense network come first.

        Args:
            digest: of the dense weights.
        """
        freed = {waiting for waiting, needed in self.needs.items() if needed == point}
        self.needs = {waiting: needed for waiting, needed in self.needs.items() if needed != point}
        again = {key: job for key, (job, other) in self.earlier.items() if key[0] in freed and other != digest}
        self.earlier = {key: value for key, value in self.earlier.items() if key[0] not in freed}
        self.jobs = again | self.jobs

    def drop_waiting_for(self, point: Point) -> int:
        """Forget the points whose dense network failed; how many they are."""
        lost = [key for key in self.jobs if self.needs.get(key[0]) == point]
        for key in lost:
            del self.jobs[key]
        return len(lost)


def queue_of(
    studies: Iterable[Study],
    wanted: Iterable[Point],
    *,
    kernels: Sequence[str],
    shared: Mapping[str, Sequence[str]],
    out: Path,
    results: Path,
    one_block: bool = False,
) -> Queue:
    """The points that have no line yet, each behind the dense network that it needs, which is stored or is trained now.

    Args:
        wanted: in any order; they are worked on by their turns.
        kernels: options of run.py; `ACCURACY` alone times nothing.
        shared: network -> overrides of all of its points.
        out, results: folders with one of each study in them, for lines and for runs.
        one_block: points whose line is of other dense weights, from a machine whose store is not at hand, are done again.
    """
    queue, of_name = Queue(), {study.name: study for study in studies}
    known = {name: rows.current_lines(study, out / name / rows.FILE) for name, study in of_name.items()}

    def overrides_of(point: Point, kernel: str) -> list[str]:
        if kernel == ACCURACY:
            how = UNTIMED
        else:
            how = (f"kernel={kernel}", *definition.networks()[point.network].latency)
        where = f"results_dir={results / point.study}"
        return [*point.overrides, *rows.QUIET, *how, where, *shared[point.network]]

    for point in sorted(wanted, key=lambda point: point.turn):
        dense = definition.dense_point(of_name[point.study], point)
        for kernel in kernels:
            line = known[point.study].get((point, kernel))
            if line is not None and not (one_block and line[DIGEST]):
                continue
            if (dense, ACCURACY) not in queue.jobs:
                queue.jobs[dense, ACCURACY] = overrides_of(dense, ACCURACY)
                if (earlier := known[point.study].get((dense, ACCURACY))) is not None:
                    queue.denses[dense] = earlier[DIGEST]
            queue.needs[point] = dense
            if line is None:
                queue.jobs[point, kernel] = overrides_of(point, kernel)
            else:
                queue.earlier[point, kernel] = (overrides_of(point, kernel), line[DIGEST])
    return queue


def run(queue: Queue, pool: Executor, *, out: Path, workers: int, ends_at: float, say: Callable[[str], None]) -> None:
    """Work until nothing is left, or the time is over: what has begun is finished.

    Args:
        out: folder of the studies' folders, where lines go.
        ends_at: `time.monotonic()` after which nothing is begun any more.
    Raises:
        SystemExit: the system killed a process of the pool, which ends them all.
    """
    running: dict[Future, Job] = {}
    try:
        _work(queue, pool, running, out=out, workers=workers, ends_at=ends_at, say=say)
    except BrokenExecutor as error:
        points = "; ".join(f"{point}, kernel={kernel}" for (point, kernel), _ in running.values())
        why = "a process of the pool was killed, by the system where memory ran out"
        raise SystemExit(f"{why}; what was running is left for the next call: {points}") from error


def _work(
    queue: Queue,
    pool: Executor,
    running: dict[Future, Job],
    *,
    out: Path,
    workers: int,
    ends_at: float,
    say: Callable[[str], None],
) -> None:
    """`run`; `running` holds what has begun and has no line yet.

    Raises:
        BrokenExecutor: a process of the pool was killed.
    """
    while queue.jobs or running:
        while len(running) < workers and time.monotonic() < ends_at and (job := queue.take()):
            running[pool.submit(finish, job[1])] = job
        if not running:
            say(f"out of time: {len(queue.jobs)} points are left for the next call")
            return
        for done in sorted(wait(running, return_when=FIRST_COMPLETED).done, key=_lost):  # first what has a line
            if _lost(done):
                done.result()
            (point, kernel), overrides = running.pop(done)
            if (error := done.exception()) is not None:
                say(f"{point}: FAILED, {type(error).__name__}: {error}")
                if lost := queue.drop_waiting_for(point):
                    say(f"{lost} points need that network: they are left for the next call")
                continue
            found = done.result()
            if point.row == definition.DENSE and found.get(rows.UNSUPPORTED):  # a folder that is not there, say
                say(f"{point}: {found[rows.UNSUPPORTED]}")
                say(f"{queue.drop_waiting_for(point)} points need that network: they are left for the next call")
                continue
            digest = found.get(DIGEST)
            if digest is None or queue.denses.get(point) != digest:
                path, chosen = out / point.study / rows.FILE, [text for text in overrides if not _names_a_place(text)]
                rows.append_line(path, point, kernel, found, overrides=shlex.join(chosen))
            say(f"{point}, kernel={kernel}: {_told(found)}")
            queue.finished(point, digest)


def _lost(done: Future) -> bool:
    """Whether it ended because a process of the pool did, be it another one's."""
    return isinstance(done.exception(), BrokenExecutor)


def _names_a_place(override: str) -> bool:
    """Whether it is a folder of this machine, which says nothing about the point."""
    return override.partition("=")[0] in PLACES


def _told(found: Mapping) -> str:
    if reason := found.get(rows.UNSUPPORTED):
        return f"unsupported, {reason}"
    named = ("val_dense", "val_masked", "dense", "dense_continued", "masked", "speedup", rows.SECONDS)
    return ", ".join(f"{name} {found[name]:.4g}" for name in named if found.get(name) is not None)
