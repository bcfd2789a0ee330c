"""The picture that leads: sparse patterns, the search, and the smaller dense networks that a user would take instead.

    python -m experiments.front.study --workers 6 --overrides experiment=front_squad model.path=DIR dataset.path=DIR

Every line has the same dense network, steps, teacher and seeds. Kernels are swapped in and timed for the seeds of --timed, for
every search, which measures times anyway, and in low precision, which is that of kernels; the other networks are evaluated with
their masks. With --precisions none bf16 every timed line is timed in fp16 and in bf16, each beside dense in the same dtype, and
with fp8 once more. With --recovery none the masks are made in one step and only timed: nothing is trained after pruning. A row is
added to --out as soon as its point is finished, so that a killed study goes on where it was. `summary.py` makes the page's table
and figure.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.harness import runs
from experiments.harness.rows import COMMIT_DIGITS, Row, text
from sparsefront.processes import side_by_side, worker_processes
from sparsefront.results.store import append_line, read_lines

if TYPE_CHECKING:
    from sparsefront.results.record import Result

SIXTEEN_BITS, LOW_PRECISIONS = "none", ("fp8", "fp8_static", "int8")  # options of group precision
BF16 = "bf16"  # of measure.dtype; without it a GPU measures fp16
BEFORE_PRUNING = "dense before pruning"
DENSE, DEPTH, WIDTH = "dense", "depth", "width"
_SEARCH = ("pattern=mixed", "allocation=latency_search")
_BLOCKS, _TILES = "block_wise:64,block_wise:128", "tile_wise:64,tile_wise:128"
_ALL = f"pattern.candidates=[{{name:n_m,m:4}},vector_wise:32,{_BLOCKS},{_TILES}]"
CHOICES = {
    DENSE: ("pattern=dense",),
    DEPTH: ("pattern=depth", "schedule=one_shot"),
    WIDTH: ("pattern=channel", "pattern.axis=width"),
    "2:4": ("pattern=n_m", "pattern.m=4", "schedule=one_shot"),  # as its sources do, see the page of the recoveries
    "n:m": ("pattern=n_m", "schedule=one_shot"),
    "vectors of 32": ("pattern=vector_wise", "granularity=32"),
    "blocks of 64": ("pattern=block_wise", "granularity=64"),
    "blocks of 64x128": ("pattern=block_wise", "granularity=64x128"),  # which fp8 can run too
    "tiles of 128": ("pattern=tile_wise", "granularity=128"),
    "search": (*_SEARCH, _ALL),
    "search, blocks": (*_SEARCH, f"pattern.candidates=[{_BLOCKS}]"),
    "search, tiles": (*_SEARCH, f"pattern.candidates=[{_TILES}]"),
    "search, uneven": (*_SEARCH, "pattern.candidates=[block_wise:64]"),
    "search, no swaps": (*_SEARCH, _ALL, "allocation.generations=0"),
}
"""Line -> overrides of run.py. The dense network is a line in low precision alone. The searches after the first ablate it: fewer
candidates, one pattern with uneven sparsities, and the exact solution without the search by swaps.
"""
SEARCHES = tuple(name for name, overrides in CHOICES.items() if set(_SEARCH) <= set(overrides))
LEVELS = {
    DENSE: (0.0,),
    DEPTH: (0.25, 0.34, 0.5),
    WIDTH: (0.25, 0.5),
    "2:4": (0.5,),
    "n:m": (0.75,),
    "vectors of 32": (0.5, 0.75),
    "blocks of 64": (0.5, 0.75),
    "blocks of 64x128": (0.5, 0.75),
    "tiles of 128": (0.5, 0.75),
    **dict.fromkeys(SEARCHES, (1.3, 1.5, 2.0)),
}
"""Line -> sparsities, or speedups that are searched for."""
CEILING = "sparsity=0.95"  # of a layer, in a search
NOT_RECOVERED = ("schedule=one_shot", "recovery=none")
UNTIMED = ("kernel=none", "measure.latency=false", "optimize=[val_masked]")
MEASURED = (
    "metric_name val_dense val_dense_distilled val_masked val_sparse dense dense_distilled masked sparse "
    "dense_standard_error latency_dense_ms latency_sparse_ms speedup speedup_low speedup_high latency_dense_dataset_ms "
    "latency_sparse_dataset_ms speedup_dataset speedup_dataset_low speedup_dataset_high latency_predicted_ms "
    "sparsity_achieved sparse_flops_share precision dataset_split dense_variant sparse_variant prune_seconds "
    "recover_seconds run_id gpu torch_version commit dense_weights_sha256 time "
    # of the dense network in a low precision beside, in records that have it
    "dense_low latency_dense_low_ms latency_dense_low_dataset_ms dense_low_precision speedup_low_precision "
    "speedup_low_precision_low speedup_low_precision_high speedup_low_precision_dataset speedup_low_precision_dataset_low "
    "speedup_low_precision_dataset_high recovery"
).split()


@dataclass(frozen=True)
class Point:
    """One line of the table, with one seed.

    Args:
        choice: of CHOICES; or BEFORE_PRUNING, the network that all others of its seed are made from, which has no line.
        level: of LEVELS.
        precision: of the products: SIXTEEN_BITS, BF16, or one of LOW_PRECISIONS.
        recovered: False: pruned in one step and not trained afterwards, so that only its times mean something.
    """

    choice: str
    level: float
    seed: int
    precision: str = SIXTEEN_BITS
    recovered: bool = True

    def overrides(self) -> list[str]:
        """What `run.py` takes."""
        seed = f"seed={self.seed}"
        if self.choice == BEFORE_PRUNING:
            return [seed, "pattern=dense", "stages=[dense]", *runs.QUIET]
        level = [] if self.choice == DENSE else [f"sparsity={self.level:g}"]
        if self.choice in SEARCHES:
            level = [CEILING, f"allocation.speedup={self.level:g}"]
        precision = {SIXTEEN_BITS: [], BF16: [f"measure.dtype={BF16}"]}.get(
            self.precision, [f"precision={self.precision}"]
        )
        trained = ["control=dense_distilled"] if self.recovered else NOT_RECOVERED
        return [seed, *runs.QUIET, *dict.fromkeys((*CHOICES[self.choice], *trained)), *level, *precision]

    @property
    def cells(self) -> Row:
        """What names its line, beside the precision."""
        return {"choice": self.choice, "level": f"{self.level:g}", "seed": str(self.seed)}

    def is_of(self, row: Row) -> bool:
        """Whether a row is this point: the record names the dtype where nothing is in low precision."""
        precision = row["precision"] if row["precision"] in (BF16, *LOW_PRECISIONS) else SIXTEEN_BITS
        same = self.precision == precision and self.recovered == is_recovered(row)
        return same and all(row[name] == cell for name, cell in self.cells.items())

    def is_timed(self, seeds: Sequence[int]) -> bool:
        """Whether kernels are swapped in: for these seeds and for points whose times are all that they are for."""
        always = self.choice in (BEFORE_PRUNING, *SEARCHES) or self.precision != SIXTEEN_BITS or not self.recovered
        return always or self.seed in seeds


def is_recovered(row: Row) -> bool:
    """Whether the network of a row was trained after pruning, so that its accuracy counts."""
    return row.get("recovery") != "none"


def run_point(point: Point, *, timed: Sequence[int], overrides: Sequence[str]) -> Row | str | None:
    """Run a point in this process.

    Returns:
        its line; None of the dense network before pruning; or the reason why there is no such network.
    """
    record = runs.record_of([*overrides, *point.overrides(), *(() if point.is_timed(timed) else UNTIMED)])
    return record if record is None or isinstance(record, str) else line_of(point, record)


def line_of(point: Point, record: "Result") -> Row:
    """The line of a point, from the record of its run."""
    flat = record.flat()
    found = {name: flat.get(name) for name in MEASURED}
    found["commit"] = (found["commit"] or "")[:COMMIT_DIGITS]  # there is none outside a checkout
    found["dense_weights_sha256"] = (found["dense_weights_sha256"] or "")[:8]
    return point.cells | {name: str(text(value)) for name, value in found.items()}


def points_of(
    choices: Sequence[str],
    seeds: Sequence[int],
    precisions: Sequence[str] = (SIXTEEN_BITS,),
    *,
    timed: Sequence[int] = (),
    recovered: bool = True,
) -> list[Point]:
    """Seed after seed, so that what is there at any time is a whole study of fewer seeds. BF16 is for seeds that are timed."""
    return [
        Point(choice, level, seed, precision, recovered)
        for seed in seeds
        for precision in precisions
        for choice in choices
        for level in LEVELS[choice]
        if (choice != DENSE or precision in LOW_PRECISIONS)
        and (precision != BF16 or seed in timed or choice in SEARCHES or not recovered)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/front/rows.csv"))
    parser.add_argument("--choices", nargs="+", choices=list(CHOICES), default=list(CHOICES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--timed", type=int, nargs="*", default=[0], help="seeds whose networks get kernels and are timed"
    )
    precisions = [SIXTEEN_BITS, BF16, *LOW_PRECISIONS]
    parser.add_argument("--precisions", nargs="+", choices=precisions, default=[SIXTEEN_BITS])
    parser.add_argument(
        "--recovery", choices=["none"], help="none: networks that are only timed, not trained after pruning"
    )
    runs.add_options(parser)
    arguments = parser.parse_args()
    ends_at = runs.ends_at(arguments.minutes)
    rows = read_lines(arguments.out)
    recovered = arguments.recovery is None
    points = points_of(
        arguments.choices, arguments.seeds, arguments.precisions, timed=arguments.timed, recovered=recovered
    )
    todo = [
        point
        for point in points
        if not any(point.is_of(row) and (row["speedup"] or not point.is_timed(arguments.timed)) for row in rows)
    ]
    dense = {point.seed: Point(BEFORE_PRUNING, 0.0, point.seed) for point in todo}
    work = partial(run_point, timed=arguments.timed, overrides=arguments.overrides)
    left = len(todo)
    with worker_processes(arguments.workers) as pool:
        after = {point: dense[point.seed] for point in todo}
        jobs = [*dense.values(), *todo]
        for done in side_by_side(jobs, work, pool, workers=arguments.workers, after=after, ends_at=ends_at):
            if done.error is not None:
                print(f"{done.job} failed: {type(done.error).__name__}: {done.error}", flush=True)
            elif isinstance(done.found, str):
                left -= 1
                print(f"{done.job} is left out: {done.found}", flush=True)
            elif done.found is not None:
                left -= 1
                append_line(arguments.out, done.found)
                named = ("val_masked", "masked", "sparse", "dense_distilled", "speedup", "speedup_dataset")
                told = ", ".join(f"{name} {float(done.found[name]):.4g}" for name in named if done.found[name])
                print(f"{done.job}: {told}", flush=True)
    if left:
        print(f"{left} points are left for the next call", flush=True)


if __name__ == "__main__":
    main()
