"""What whole tiles, inputs in multiples of 16 and equal scores cost tile_wise in accuracy: BERT on SST-2, three seeds.

    python experiments/tile_wise_hardware/study.py --model DIR --data DIR

--model: a BERT as `save_pretrained` writes it; --data: GLUE in its original layout (SST-2/train.tsv, SST-2/dev.tsv). Each point
is pruned once by magnitude and trained on, as `run.py experiment=bert_sst2` does it, from a dense network that its seed shares.
A line is added to --out as soon as its point is finished, so that a killed study goes on where it was; points whose masks
are the same as another's are not trained again. `summary.py` makes the table of the page from the lines.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import astuple, fields
from pathlib import Path

import points  # beside this file
from points import Job, Point, Result

from sparsefront.artifacts.csv_lines import read_lines

HERE = Path(__file__).resolve().parent


def unfinished(wanted: Iterable[Point], rows: Sequence[dict[str, str]]) -> list[Point]:
    """The points that have no line yet."""
    finished = {tuple(row[field.name] for field in fields(Point)) for row in rows}
    return [point for point in wanted if tuple(str(value) for value in astuple(point)) not in finished]


def of_equal_masks(wanted: Sequence[Point], digests: Sequence[str]) -> dict[Point, list[Point]]:
    """The first point of every set of equal masks -> the others of it. A seed has its own dense network, so its own sets."""
    first: dict[tuple[int, str], Point] = {}
    sets: dict[Point, list[Point]] = {}
    for point, digest in zip(wanted, digests, strict=True):
        leader = first.setdefault((point.seed, digest), point)
        sets.setdefault(leader, []).extend([] if leader is point else [point])
    return sets


class Study:
    """What finishes points, and where their lines go.

    Args:
        workers: trainings side by side, as many as the pool has processes.
        ends_at: `time.monotonic()` after which nothing is begun any more.
    """

    def __init__(self, job: Job, pool: ProcessPoolExecutor, workers: int, out: Path, ends_at: float) -> None:
        self.job, self.pool, self.workers, self.out, self.ends_at = job, pool, workers, out, ends_at

    def run(self, wanted: Sequence[Point]) -> None:
        """Dense networks first, then all masks, then one training for every set of equal masks."""
        seeds = sorted({point.seed for point in wanted})
        dense = [points.dense(seed) for seed in seeds]
        self._finish({point: [] for point in unfinished(dense, read_lines(self.out))})
        left = unfinished(wanted, read_lines(self.out))
        digests = list(self.pool.map(points.mask_digest, [self.job] * len(left), left))
        self._finish(of_equal_masks(left, digests))

    def _finish(self, sets: dict[Point, list[Point]]) -> None:
        """Train and judge the first of each set, and write its line and those of its equals."""
        waiting, running = list(sets), {}
        while waiting or running:
            while waiting and len(running) < self.workers and time.monotonic() < self.ends_at:
                point = waiting.pop(0)
                running[self.pool.submit(points.finish, self.job, point)] = point
            if not running:
                print(f"out of time: {len(waiting)} trainings are left for the next call", flush=True)
                return
            done: Future = next(as_completed(running))
            point = running.pop(done)
            self._write(point, sets[point], done.result())

    def _write(self, point: Point, equals: Sequence[Point], result: Result) -> None:
        for row in (point, *equals):
            points.append_row(self.out, row, result, same_masks_as="" if row is point else point.variant)
        print(
            f"{point}: val {result.val_metric:.4f}, dev {result.dev_metric:.4f}, {result.seconds:.0f} s"
            f"{''.join(f'; the same masks: {other.variant}' for other in equals)}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE / "rows.csv")
    parser.add_argument("--cache", type=Path, default=Path(".cache/sparsefront"), help="finished stages are kept here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--granularities", type=int, nargs="+", default=[128, 32])
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.75])
    parser.add_argument("--allocations", nargs="+", default=["per_layer", "global_threshold"])
    parser.add_argument("--variants", nargs="+", default=list(points.VARIANTS), choices=list(points.VARIANTS))
    parser.add_argument("--workers", type=int, default=8, help="trainings side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing is begun after so many")
    parser.add_argument("--overrides", nargs="*", default=[], help="of run.py, for all points: trainer.limit_batches=2")
    arguments = parser.parse_args()
    wanted = [
        Point(variant, granularity, allocation, sparsity, seed)
        for allocation in arguments.allocations
        for sparsity in arguments.sparsities
        for seed in arguments.seeds
        for granularity in arguments.granularities
        for variant in arguments.variants
    ]
    job = Job(
        arguments.model.resolve(), arguments.data.resolve(), arguments.cache.resolve(), tuple(arguments.overrides)
    )
    ends_at = time.monotonic() + 60 * arguments.minutes
    # Of the workers, before they import torch and tqdm: they share the cores and the terminal.
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=spawned) as pool:
        Study(job, pool, arguments.workers, arguments.out, ends_at).run(wanted)


if __name__ == "__main__":
    main()
