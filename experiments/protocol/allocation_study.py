"""Which allocation, and which score of groups, keeps the most accuracy: three patterns, three seeds.

    python experiments/protocol/allocation_study.py digits
    python experiments/protocol/allocation_study.py sst2 mrpc --bert DIR --glue DIR --workers 8
    python experiments/protocol/allocation_study.py cifar10 --cifar10 DIR

--bert: a BERT as `save_pretrained` writes it (the page's is all-MiniLM-L6); --glue: GLUE in its original layout; --cifar10: see
`dataset=cifar10`. A line is added to --out as soon as its point is finished, so that a killed study goes on where it was. The
tables of the page are made by `allocation_summary.py`.
"""

import argparse
import functools
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import allocation_points as points  # beside this file
from allocation_points import NETWORKS, VARIANTS, Point

from sparsefront.artifacts.csv_lines import read_lines
from sparsefront.side_by_side import side_by_side
from sparsefront.worker_processes import worker_processes

HERE = Path(__file__).resolve().parent


def run(
    wanted: Sequence[Point], pool: Executor, out: Path, overrides: dict[str, list[str]], *, workers: int, ends_at: float
) -> None:
    """Finish the points that have no line yet: first the dense networks, which the others share.

    Args:
        overrides: network -> what run.py takes for all of its points.
        ends_at: `time.monotonic()` after which nothing is begun any more.
    """
    finished = {points.point_of(row) for row in read_lines(out)}
    left = sorted((point for point in wanted if point not in finished), key=lambda point: point.pattern != "dense")
    after = {p: Point(p.network, "dense", 0.0, "", "", p.seed) for p in left if p.pattern != "dense"}
    work = functools.partial(_finish, overrides=overrides)
    for done in side_by_side(left, work, pool, workers=workers, after=after, ends_at=ends_at):
        left.remove(done.job)
        if done.error is not None:
            raise done.error
        points.append_row(out, done.job, done.found)
        told = f"val {done.found.val_metric:.4f}, test {done.found.test_metric:.4f}, {done.found.seconds:.0f} s"
        print(f"{done.job}: {told}", flush=True)
    if left:
        print(f"out of time: {len(left)} points are left for the next call", flush=True)


def _finish(point: Point, overrides: dict[str, list[str]]) -> points.Result:
    return points.finish(point, overrides[point.network])


def folder_overrides(network: str, folders: dict[str, Path | None], parser: argparse.ArgumentParser) -> list[str]:
    """The overrides that name the folders of a network; ends the program where one was not given."""
    if missing := [f"--{name}" for name in NETWORKS[network].folders.values() if folders[name] is None]:
        parser.error(f"{network} needs {' and '.join(missing)}")
    return [f"{key}={folders[name].resolve()}" for key, name in NETWORKS[network].folders.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=list(NETWORKS))
    parser.add_argument("--bert", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "allocation.csv")
    parser.add_argument("--cache", type=Path, default=Path(".cache/sparsefront"), help="finished stages are kept here")
    parser.add_argument("--patterns", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--sparsities", type=float, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--workers", type=int, default=1, help="trainings side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")
    parser.add_argument("--overrides", nargs="*", default=[], help="of run.py, for all points: trainer.limit_batches=2")
    arguments = parser.parse_args()
    folders = {"bert": arguments.bert, "glue": arguments.glue, "cifar10": arguments.cifar10}
    shared = [f"cache_dir={arguments.cache.resolve()}", *arguments.overrides]
    overrides = {name: [*folder_overrides(name, folders, parser), *shared] for name in arguments.networks}
    chosen = {"patterns": arguments.patterns, "sparsities": arguments.sparsities, "seeds": arguments.seeds}
    wanted = [point for network in arguments.networks for point in points.all_points(network, **chosen)]
    ends_at = time.monotonic() + 60 * arguments.minutes
    with worker_processes(arguments.workers) as pool:
        run(wanted, pool, arguments.out, overrides, workers=arguments.workers, ends_at=ends_at)


if __name__ == "__main__":
    main()
