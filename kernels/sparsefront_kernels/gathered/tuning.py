"""Launch parameters of the Hopper kernel: the space, a model that says what is worth timing, and what was measured."""

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace

import torch

from sparsefront_kernels.gathered.cuda_spmm import ALIGNMENT, PairLaunch, processors
from sparsefront_kernels.gathered.pairs import PairTables
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedKernel, tuned_kernel

KERNEL = "gathered_cuda"
VERSION = 2  # raised when a change of the kernel makes old measurements worthless

# Microseconds, by (columns of a block, blocks to a multiprocessor), fitted to measurements on an H200: of the launch, of
# an item beyond its steps, of a step.
_COSTS = {
    (256, 1): (3.2, 2.2, 0.66),
    (128, 1): (2.9, 1.1, 0.43),
    (128, 2): (3.3, 2.3, 0.84),
    (64, 1): (2.1, 1.0, 0.33),
    (64, 2): (1.2, 1.5, 0.66),
}
# Of blocks that share an item's steps, for 128 columns: they wait for one another, and send their sums.
_SPLIT_COSTS = {1: 0.0, 2: 3.0, 3: 4.0, 4: 6.0}
_REACHED_BY_CLUSTERS = 0.85  # of the processors, by clusters of three blocks and more
_PREFETCH_GAIN, _PREFETCH_COST = 0.3, 0.06  # of the launch; of every further step of a block
_GROUPS = (64, 16, 4)  # the first is best for most large products
_STAGES = {(256, 1): 4, (128, 1): 6, (128, 2): 3, (64, 1): 8, (64, 2): 4}  # as many as fit: fewer never were faster

SPACE = tuple(
    launch
    for (block_m, blocks_per_sm), group, splits, prefetch in itertools.product(
        _COSTS, _GROUPS, _SPLIT_COSTS, (False, True)
    )
    if (launch := PairLaunch(block_m, _STAGES[block_m, blocks_per_sm], group, blocks_per_sm, splits, prefetch)).possible
)


@dataclass(frozen=True)
class PairProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        pairs, steps: pairs of half tiles, and how many steps all of them have together.
    """

    m: int
    k: int
    n: int
    pairs: int
    steps: int

    @classmethod
    def of(cls, tables: PairTables, m: int) -> "PairProblem":
        """Of a prepared weight and m rows of X, which the kernel reads padded."""
        return cls(-(-m // ALIGNMENT) * ALIGNMENT, tables.k, tables.n, len(tables.pairs), len(tables.steps))

    @property
    def steps_of_pair(self) -> float:
        return self.steps / max(1, self.pairs)

    @property
    def key(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} steps={self.steps_of_pair:.4g}"


def predicted_us(problem: PairProblem, launch: PairLaunch, device_processors: int) -> float:
    """A coarse model of the latency: rounds of blocks, each a start, its steps and its stores."""
    start, tail, step = _COSTS[launch.block_m, launch.blocks_per_sm]
    items = problem.pairs * -(-problem.m // launch.block_m) * launch.splits
    reached = _REACHED_BY_CLUSTERS if launch.splits > 2 else 1.0
    rounds = -(-items // int(device_processors * reached * launch.blocks_per_sm))
    steps = -(-problem.steps_of_pair // launch.splits)
    predicted = start + rounds * (tail + steps * step + _SPLIT_COSTS[launch.splits] * launch.block_m / 128)
    if launch.prefetch:
        predicted += _PREFETCH_COST * max(0.0, rounds * steps - launch.stages) - _PREFETCH_GAIN
    return predicted


def candidates(problem: PairProblem, device_processors: int, *, slack: float = 1.4, most: int = 18) -> list[PairLaunch]:
    """The launches worth timing, best predicted first: those predicted within `slack` of the best, `most` at most.

    The model does not know what the order of work does to caches: the other orders are tried with the two best only.
    """
    predicted = {launch: predicted_us(problem, launch, device_processors) for launch in SPACE}
    bound = slack * min(predicted.values())
    worth = [launch for launch in SPACE if launch.group == _GROUPS[0] and predicted[launch] <= bound]
    others = 2 * (len(_GROUPS) - 1)
    worth = sorted(worth, key=lambda launch: predicted[launch])[: most - others]
    worth += [replace(best, group=group) for best in worth[:2] if best.block_m < problem.m for group in _GROUPS[1:]]
    return sorted(worth, key=lambda launch: predicted[launch])


def launch_for(problem: PairProblem, device: torch.device) -> PairLaunch:
    """The launch to use: measured for this m, k and n, at the nearest number of steps, or else the best predicted."""
    return _launch_for(problem, torch.cuda.get_device_name(device), processors(device))


def remember(problem: PairProblem, launch: PairLaunch, latency_us: float, gpu: str) -> TunedKernel:
    """Use this launch from now on in this process; `save` of what is returned keeps it."""
    table = tuned_kernel(gpu, KERNEL, VERSION)
    table.record(problem.key, asdict(launch) | {"latency_us": round(latency_us, 2)})
    _launch_for.cache_clear()
    return table


class PairTunable:
    """The `Tunable` of the Hopper kernel, the same in every layout."""

    kernel = KERNEL
    version = VERSION

    def candidates(self, prepared: PairTables, problem: Problem) -> list[PairLaunch]:
        return candidates(PairProblem.of(prepared, problem.m), processors(problem.device))

    def remember(self, prepared: PairTables, problem: Problem, launch: PairLaunch, latency_us: float) -> None:
        remember(PairProblem.of(prepared, problem.m), launch, latency_us, torch.cuda.get_device_name(problem.device))


PAIR_TUNABLE = PairTunable()


def fastest(launches: list[PairLaunch], time_us: Callable[[PairLaunch], float]) -> tuple[PairLaunch, float]:
    """Time all launches; the fastest and its time."""
    times = {launch: time_us(launch) for launch in launches}
    best = min(times, key=lambda launch: times[launch])
    return best, times[best]


@functools.lru_cache(maxsize=4096)
def _launch_for(problem: PairProblem, gpu: str, device_processors: int) -> PairLaunch:
    shape = f"m={problem.m} k={problem.k} n={problem.n} steps="
    measured = {
        float(re.sub(".*steps=", "", key)): entry
        for key, entry in tuned_kernel(gpu, KERNEL, VERSION).entries.items()
        if key.startswith(shape)
    }
    if measured:
        nearest = min(measured, key=lambda steps: abs(steps - problem.steps_of_pair))
        names = {part.name for part in fields(PairLaunch)}
        return PairLaunch(**{name: value for name, value in measured[nearest].items() if name in names})
    return candidates(problem, device_processors, slack=1.0)[0]
