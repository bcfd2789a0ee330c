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
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from experiments.studies import definition, rows, work
from experiments.studies.cells import cells_of, finalists
from experiments.studies.crossing import retrainings
from experiments.studies.definition import Point, Study
from experiments.studies.finish import warm_up
from sparsefront.processes import worker_processes


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
    options.add_argument("--workers", type=int, default=1, help="processes side by side")
    options.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")
    options.add_argument("--out", type=Path, default=definition.EXPERIMENTS, help="of the studies' folders")
    options.add_argument("--results", type=Path, default=Path("results/experiments"), help="of the runs")
    options.add_argument("--cache", type=Path, default=Path(".cache/sparsefront"), help="of finished stages")
    options.add_argument(
        "--overrides", nargs="*", default=[], help="of run.py, for all points: trainer.limit_batches=2"
    )
    options.add_argument("--list", action="store_true", help="print what is left, and end")
    return options


def wanted(studies: Sequence[Study], arguments: argparse.Namespace, networks: Sequence[str]) -> Iterator[Point]:
    """The points that the options leave; those of finalists and at crossings follow from the lines that are there."""
    for study in studies:
        lines = rows.current_lines(study, arguments.out / study.name / rows.FILE)
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


def further_seeds(study: Study, lines: Mapping[rows.Key, rows.Line], networks: Container[str]) -> Iterator[Point]:
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
    ends_at = time.monotonic() + 60 * arguments.minutes
    studies = [definition.read_study(name) for name in arguments.studies]
    folders = folder_overrides(arguments)
    for network in sorted({network for study in studies for network in study.networks} - folders.keys()):
        print(f"{network} is left out: no folder of its model or data was given, or --networks does not name it")
    cache = f"cache_dir={arguments.cache.resolve()}"
    seen: set[Point] = set()

    def next_queue() -> work.Queue:
        """Of the points that no earlier queue of this call had."""
        fresh = [point for point in wanted(studies, arguments, list(folders)) if point not in seen]
        seen.update(fresh)
        return work.queue_of(
            studies,
            fresh,
            kernels=arguments.kernels or [work.ACCURACY],
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
            work.run(queue, pool, out=arguments.out, workers=arguments.workers, ends_at=ends_at, say=say)
            queue = next_queue()
            if queue.jobs:
                say(f"{len(queue.jobs)} points more, which follow from these")


if __name__ == "__main__":
    main()
