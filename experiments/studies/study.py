"""The studies: each a folder of experiments/ with a `study.yaml`, re-made point by point.

    python -m experiments.studies.study recoveries nmsparse_bert --bert DIR --glue DIR --workers 8 --minutes 8
    python -m experiments.studies.study recoveries --bert DIR --glue DIR --headlines --kernels auto sparse
    python -m experiments.studies.page

Without --kernels networks are trained and evaluated, --workers of them side by side, and nothing is timed. With it the same
networks (their stages are stored) get kernels and are timed: one has the GPU to itself while others compile. A line is added
to points.csv of the study's folder as soon as a point is finished, so that a killed study goes on where it was; the runs lie
below --results, for compare.py. First come the headlines of all named studies, behind the dense networks that they need, then
what is left, then headlines with further seeds. `--finalists` adds further seeds of the two lines that are best on `val` with
the first seed, in every column that has a target. Where a table has a `crossing`, the levels beside it are retrained as soon
as all levels of a line are done. What follows so from new lines is done in the same call. On a machine without the store of
earlier calls dense networks are trained again; `--one-block` repeats points whose line is of other dense weights.
"""

import argparse
import shlex
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness import runs
from experiments.studies import definition
from experiments.studies.cells import (
    ACCURACY,
    DIGEST,
    FACTS,
    FILE,
    QUIET,
    SECONDS,
    UNSUPPORTED,
    Key,
    Line,
    append_line,
    cells_of,
    current_lines,
    finalists,
)
from experiments.studies.crossing import retrainings
from experiments.studies.definition import Point, Study
from sparsefront.processes import worker_processes

UNTIMED = ("kernel=none", "measure.latency=false", "measure.batch_size=256", "optimize=[val_masked]")

Job = tuple[Key, list[str]]  # what, and the overrides of run.py


def warm_up() -> None:
    """Import what every point needs, and begin with the GPU, while the first dense network trains elsewhere."""
    import torch

    import sparsefront.pipeline  # noqa: F401

    torch.cuda.is_available() and torch.zeros(1, device="cuda")


def finish(overrides: Sequence[str]) -> dict[str, Any]:
    """Run a point in a process of the pool.

    Returns:
        facts of the result by name and `seconds`; or `unsupported`, the reason why there is no such network.
    """
    began = time.perf_counter()
    record = runs.record_of(overrides)
    if isinstance(record, str):
        return {UNSUPPORTED: record}
    return {name: record.value_of(name) for name in FACTS} | {SECONDS: round(time.perf_counter() - began, 1)}


@dataclass
class Queue:
    """What is left to do, in order; a point waits for its dense network.

    Args:
        needs: point -> its dense point, where that one is not finished.
        earlier: jobs that have a line -> digest of its dense weights; they are done again where this call has others.
        denses: dense point -> digest of the weights in its line, where it has one.
    """

    jobs: dict[Key, list[str]] = field(default_factory=dict)
    needs: dict[Point, Point] = field(default_factory=dict)
    earlier: dict[Key, tuple[list[str], str]] = field(default_factory=dict)
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
    known = {name: current_lines(study, out / name / FILE) for name, study in of_name.items()}

    def overrides_of(point: Point, kernel: str) -> list[str]:
        if kernel == ACCURACY:
            how = UNTIMED
        else:
            how = (f"kernel={kernel}", *definition.networks()[point.network].latency)
        where = f"results_dir={results / point.study}"
        return [*point.overrides, *QUIET, *how, where, *shared[point.network]]

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
    running: dict[Future, Job] = {}  # what has begun and has no line yet
    try:
        while queue.jobs or running:
            while len(running) < workers and not runs.over(ends_at) and (job := queue.take()):
                running[pool.submit(finish, job[1])] = job
            if not running:
                say(f"out of time: {len(queue.jobs)} points are left for the next call")
                return
            for done in sorted(wait(running, return_when=FIRST_COMPLETED).done, key=_lost):  # first what has a line
                if _lost(done):
                    done.result()
                (point, kernel), overrides = running.pop(done)
                error = done.exception()
                found = done.result() if error is None else {}
                why = None if error is None else f"FAILED, {type(error).__name__}: {error}"
                if point.row == definition.DENSE:
                    why = why or found.get(UNSUPPORTED)  # a folder that is not there, say
                if why is not None:
                    say(f"{point}: {why}")
                    if lost := queue.drop_waiting_for(point):
                        say(f"{lost} points need that network: they are left for the next call")
                    continue
                digest = found.get(DIGEST)
                if digest is None or queue.denses.get(point) != digest:
                    chosen = shlex.join(runs.without_places(overrides))
                    append_line(out / point.study / FILE, point, kernel, found, overrides=chosen)
                say(f"{point}, kernel={kernel}: {_told(found)}")
                queue.finished(point, digest)
    except BrokenExecutor as error:
        points = "; ".join(f"{point}, kernel={kernel}" for (point, kernel), _ in running.values())
        why = "a process of the pool was killed, by the system where memory ran out"
        raise SystemExit(f"{why}; what was running is left for the next call: {points}") from error


def _lost(done: Future) -> bool:
    """Whether it ended because a process of the pool did, be it another one's."""
    return isinstance(done.exception(), BrokenExecutor)


def _told(found: Mapping) -> str:
    if reason := found.get(UNSUPPORTED):
        return f"unsupported, {reason}"
    named = ("val_dense", "val_masked", "dense", "dense_continued", "masked", "speedup", SECONDS)
    return ", ".join(f"{name} {found[name]:.4g}" for name in named if found.get(name) is not None)


def parser() -> argparse.ArgumentParser:
    """All options; each folder that a network may need is one."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("studies", nargs="+", choices=definition.study_names())
    for name in sorted({name for network in definition.networks().values() for name in network.folders.values()}):
        options.add_argument(
            f"--{name}", type=Path, metavar="DIR", help="networks that need it are left out without it"
        )
    options.add_argument("--networks", nargs="+", choices=list(definition.networks()), help="only these")
    options.add_argument("--only", nargs="+", metavar="TEXT", help="only points whose name holds one of these")
    options.add_argument("--headlines", action="store_true", help="only headlines")
    options.add_argument("--finalists", action="store_true", help="further seeds of the lines that decide targets")
    options.add_argument("--one-block", action="store_true", help="repeat points of other dense weights")
    options.add_argument("--seeds", type=int, nargs="+", help="only these")
    options.add_argument("--kernels", nargs="+", choices=["auto", "sparse"], help="time points with these")
    runs.add_options(options)
    options.add_argument("--out", type=Path, default=definition.RESULTS, help="of the studies' folders")
    options.add_argument("--results", type=Path, default=Path("results/experiments"), help="of the runs")
    options.add_argument("--cache", type=Path, default=Path(".cache/sparsefront"), help="of finished stages")
    options.add_argument("--list", action="store_true", help="print what is left, and end")
    return options


def wanted(studies: Sequence[Study], arguments: argparse.Namespace, networks: Sequence[str]) -> Iterator[Point]:
    """The points that the options leave; those of finalists and at crossings follow from the lines that are there."""
    for study in studies:
        lines = current_lines(study, arguments.out / study.name / FILE)
        found = list(definition.points(study, of=networks))
        if arguments.headlines:
            found = [point for point in found if point.turn != 1]
        else:
            found += retrainings(study, cells_of(study, lines), networks)
        for point in found:
            if arguments.seeds is not None and point.seed not in arguments.seeds:
                continue
            if not arguments.only or any(text in str(point) for text in arguments.only):
                yield point
        if arguments.finalists:
            yield from further_seeds(study, lines, networks)


def further_seeds(study: Study, lines: Mapping[Key, Line], networks: Container[str]) -> Iterator[Point]:
    """The finalists of every column that has a target, with the seeds that are not the first."""
    known = cells_of(study, lines)
    for network, targets in study.targets.items():
        if network in networks:
            for column in targets:
                for point in finalists(study, known, network, column):
                    yield from definition.again(study, point, study.headline_seeds)


def folder_overrides(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Network -> the overrides that name its folders; networks without one of theirs are left out."""
    found = {}
    for name, network in definition.networks().items():
        folders = {key: getattr(arguments, option) for key, option in network.folders.items()}
        if None not in folders.values() and name in (arguments.networks or [name]):
            found[name] = [f"{key}={folder.resolve()}" for key, folder in folders.items()]
    return found


def main() -> None:
    arguments = parser().parse_args()
    ends_at = runs.ends_at(arguments.minutes)
    studies = [definition.read_study(name) for name in arguments.studies]
    folders = folder_overrides(arguments)
    for network in sorted({network for study in studies for network in study.networks} - folders.keys()):
        print(f"{network} is left out: no folder of its model or data was given, or --networks does not name it")
    cache = f"cache_dir={arguments.cache.resolve()}"
    seen: set[Point] = set()

    def next_queue() -> Queue:
        """Of the points that no earlier queue of this call had."""
        fresh = [point for point in wanted(studies, arguments, list(folders)) if point not in seen]
        seen.update(fresh)
        return queue_of(
            studies,
            fresh,
            kernels=arguments.kernels or [ACCURACY],
            shared={name: [*named, cache, *arguments.overrides] for name, named in folders.items()},
            out=arguments.out,
            results=arguments.results.resolve(),
            one_block=arguments.one_block,
        )

    queue = next_queue()
    print(f"{len(queue.jobs)} points to do", flush=True)
    if arguments.list:
        print("\n".join(f"{point}, kernel={kernel}: {' '.join(jobs)}" for (point, kernel), jobs in queue.jobs.items()))
        return
    say = partial(print, flush=True)
    with worker_processes(arguments.workers) as pool:
        for _ in range(min(arguments.workers, len(queue.jobs))):
            pool.submit(warm_up)
        while queue.jobs:
            run(queue, pool, out=arguments.out, workers=arguments.workers, ends_at=ends_at, say=say)
            queue = next_queue()
            if queue.jobs:
                say(f"{len(queue.jobs)} points more, which follow from these")


if __name__ == "__main__":
    main()
