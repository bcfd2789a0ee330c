"""all-mpnet-base-v2 on SQuAD in 16 bits and in fp8: what each pattern and each smaller dense network gains over dense in either.

    python -m experiments.low_precision.networks --out experiments/low_precision/networks.csv --workers 4 \
        --overrides experiment=front_squad model.path=DIR dataset.path=DIR

Networks are pruned in one step by magnitude. Those of RECOVERED are fine-tuned for an epoch, so that what fp8 costs is told of a
network that answers; the others are there for their latency, and their accuracy means nothing. Batches are of 32 x 128 tokens. A
line is added as soon as its point is finished.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.front.study import BEFORE_PRUNING, CHOICES, DENSE, Point, line_of
from experiments.harness import runs
from experiments.harness.rows import Row
from sparsefront.processes import side_by_side, worker_processes
from sparsefront.results.store import append_line, read_lines

LEVELS = {
    DENSE: (0.0,),
    "width": (0.25, 0.5),
    "depth": (0.25, 0.5),
    "2:4": (0.5,),
    "blocks of 64x128": (0.5, 0.75),
    "tiles of 128": (0.5, 0.75),
}
"""Choice of the front's study -> sparsities."""
RECOVERED = (("2:4", 0.5), ("blocks of 64x128", 0.5))
NOT_IN_FP8 = ("tiles of 128",)  # whose kernels gather inputs feature-major, as no fp8 operand may lie
ONE_STEP = ("schedule=one_shot", "importance=magnitude", "measure.lengths=fixed", "control=null")


@dataclass(frozen=True)
class Network(Point):
    """A point of the front's study, pruned in one step."""

    @property
    def cells(self) -> Row:
        """What names its line: `precision` says what ran, which may be 16 bits where that was faster."""
        return super().cells | {"asked": self.precision}

    def is_of(self, row: Row) -> bool:
        """Whether a row is this line."""
        return all(row[name] == cell for name, cell in self.cells.items())

    def overrides(self) -> list[str]:
        """What `run.py` takes."""
        seed = f"seed={self.seed}"
        if self.choice == BEFORE_PRUNING:
            return super().overrides()
        recovered = (self.choice, self.level) in RECOVERED
        trained = ("recovery=finetune", "recipe.recovery_epochs=1") if recovered else ("recovery=none",)
        level = () if self.choice == DENSE else (f"sparsity={self.level:g}",)
        pattern = [override for override in CHOICES[self.choice] if not override.startswith("schedule=")]
        return [seed, *runs.QUIET, *pattern, *level, *trained, *ONE_STEP, f"precision={self.precision}"]


def wanted(choices: Sequence[str]) -> list[Network]:
    """All points; the dense network in 16 bits is measured beside each of them."""
    return [
        Network(choice, level, 0, precision)
        for choice in choices
        for level in LEVELS[choice]
        for precision in ("fp8", "none")
        if (choice, precision) not in ((DENSE, "none"), *((one, "fp8") for one in NOT_IN_FP8))
    ]


def run_point(point: Network, *, overrides: Sequence[str]) -> Row | str | None:
    """As of the front's study."""
    record = runs.record_of([*overrides, *point.overrides()])
    return record if record is None or isinstance(record, str) else line_of(point, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/low_precision/networks.csv"))
    parser.add_argument("--choices", nargs="+", choices=list(LEVELS), default=list(LEVELS))
    runs.add_options(parser)
    arguments = parser.parse_args()
    rows = read_lines(arguments.out)
    todo = [point for point in wanted(arguments.choices) if not any(map(point.is_of, rows))]
    dense = Network(BEFORE_PRUNING, 0.0, 0)
    work = partial(run_point, overrides=arguments.overrides)
    with worker_processes(arguments.workers) as pool:
        jobs = [dense, *todo] if todo else []
        after = dict.fromkeys(todo, dense)
        ends_at = runs.ends_at(arguments.minutes)
        for done in side_by_side(jobs, work, pool, workers=arguments.workers, after=after, ends_at=ends_at):
            if done.error is not None:
                print(f"{done.job} failed: {type(done.error).__name__}: {done.error}", flush=True)
            elif isinstance(done.found, str):
                print(f"{done.job} is left out: {done.found}", flush=True)
            elif done.found is not None:
                append_line(arguments.out, done.found)
                told = ", ".join(
                    f"{name} {done.found[name]}" for name in ("speedup", "speedup_low_precision", "sparse")
                )
                print(f"{done.job}: {told}", flush=True)


if __name__ == "__main__":
    main()
