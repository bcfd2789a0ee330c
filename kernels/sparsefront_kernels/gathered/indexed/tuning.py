"""Launch parameters of the float32 kernel of narrow tiles: the search space, what a launch costs, and what was measured."""

import itertools
from dataclasses import dataclass

import torch

from sparsefront_kernels.common.operands import run_length
from sparsefront_kernels.gathered.indexed.packed_weight import WIDTH, IndexedPackedWeight
from sparsefront_kernels.gathered.indexed.spmm import IndexedLaunch
from sparsefront_kernels.gathered.simt.spmm import SimtLaunch
from sparsefront_kernels.performance_model.launch_costs import simt_us
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_indexed"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
SPACE = tuple(itertools.starmap(IndexedLaunch, itertools.product((16, 8), (1, 2, 3, 4, 5, 6, 8))))


@dataclass(frozen=True)
class IndexedProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        tiles, steps: tiles of 128 outputs, and how many steps all of them take together.
    """

    m: int
    k: int
    n: int
    tiles: int
    steps: int

    @classmethod
    def of(cls, packed: IndexedPackedWeight, m: int) -> "IndexedProblem":
        """Of a packed weight and m rows of X, which the kernel reads padded."""
        run = run_length(torch.float32)
        return cls(-(-m // run) * run, packed.k, packed.n, len(packed.tiles), len(packed.panels))

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} steps="

    @property
    def amount(self) -> float:
        """Steps of a tile."""
        return self.steps / max(1, self.tiles)


def predicted_us(problem: IndexedProblem, launch: IndexedLaunch, num_sms: int) -> float:
    """As the kernel of wide tiles would take for as many products: a coarse rank, not fitted to this one."""
    blocks = problem.tiles * -(-problem.m // launch.block_m) * launch.splits
    alike = SimtLaunch(launch.columns, 1, 2, launch.splits)
    return simt_us(alike, blocks, problem.amount / launch.splits * WIDTH * launch.block_m, num_sms)


def candidates(problem: IndexedProblem, num_sms: int) -> list[IndexedLaunch]:
    """All launches, best predicted first: they are few."""
    return sorted(SPACE, key=lambda launch: predicted_us(problem, launch, num_sms))


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    IndexedLaunch,
    describe=lambda packed, problem: IndexedProblem.of(packed, problem.m),
    worth_timing=candidates,
    untuned=lambda problem, num_sms: candidates(problem, num_sms)[0],
)
