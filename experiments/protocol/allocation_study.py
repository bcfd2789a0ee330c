"""Which allocation, and which score of groups, keeps the most accuracy: three patterns, three seeds.

    python experiments/protocol/allocation_study.py digits
    python experiments/protocol/allocation_study.py sst2 mrpc --bert DIR --glue DIR --workers 8
    python experiments/protocol/allocation_study.py cifar10 --cifar10 DIR

--bert: a BERT as `save_pretrained` writes it (the page's is all-MiniLM-L6); --glue: GLUE in its original layout; --cifar10: see
`dataset=cifar10`. A line is added to --out as soon as its point is finished, so that a killed study goes on where it was. The
tables of the page are made by `allocation_summary.py`.
"""

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path

import allocation_points as points  # beside this file
from allocation_points import NETWORKS, VARIANTS, Point

from sparsefront.artifacts.csv_lines import read_lines
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
    left = [point for point in wanted if point not in finished]
    for waiting in ([p for p in left if p.pattern == "dense"], [p for p in left if p.pattern != "dense"]):
        running = {}
        while waiting or running:
            while waiting and len(running) < workers and time.monotonic() < ends_at:
                point = waiting.pop(0)
                running[pool.submit(points.finish, point, overrides[point.network])] = point
            if not running:
                print(f"out of time: {len(waiting)} points are left for the next call", flush=True)
                return
            done = next(as_completed(running))
            point, result = running.pop(done), done.result()
            points.append_row(out, point, result)
            print(
                f"{point}: val {result.val_metric:.4f}, test {result.test_metric:.4f}, {result.seconds:.0f} s",
                flush=True,
            )


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
    # Of the workers, before they import torch and tqdm: they share the cores and the terminal.
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    ends_at = time.monotonic() + 60 * arguments.minutes
    with worker_processes(arguments.workers) as pool:
        run(wanted, pool, arguments.out, overrides, workers=arguments.workers, ends_at=ends_at)


if __name__ == "__main__":
    main()
