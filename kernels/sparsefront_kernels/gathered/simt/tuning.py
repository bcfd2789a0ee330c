"""Launch parameters of the float32 kernel: the search space, what a launch counts for its cost, and what was measured."""

import itertools
from dataclasses import dataclass

import torch

from sparsefront_kernels.common.operands import run_length
from sparsefront_kernels.gathered.simt.packed_weight import WIDTHS, SimtPackedWeight
from sparsefront_kernels.gathered.simt.spmm import MOST_STAGES, SimtLaunch
from sparsefront_kernels.performance_model.launch_costs import simt_us
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_simt"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
MOST_CANDIDATES = 18


def _space(width: int) -> tuple[SimtLaunch, ...]:
    """All possible launches, with as many stages as fit: fewer were never faster."""
    chosen = []
    for columns, warp_split_k, splits in itertools.product((16, 8), (1, 2, 4), (1, 2, 3, 4, 5, 6, 8)):
        fitting = [
            stages for stages in range(2, MOST_STAGES + 1) if SimtLaunch(columns, warp_split_k, stages).possible(width)
        ]
        if fitting:
            chosen.append(SimtLaunch(columns, warp_split_k, fitting[-1], splits))
    return tuple(chosen)


SPACE = {width: _space(width) for width in WIDTHS}


@dataclass(frozen=True)
class SimtProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        width: outputs of a tile.
        tiles, kept: tiles, and how many inputs all of them keep together.
    """

    m: int
    k: int
    n: int
    width: int
    tiles: int
    kept: int

    @classmethod
    def of(cls, packed: SimtPackedWeight, m: int) -> "SimtProblem":
        """Of a packed weight and m rows of X, which the kernel reads padded."""
        run = run_length(torch.float32)
        return cls(-(-m // run) * run, packed.k, packed.n, packed.width, len(packed.tiles), len(packed.kept))

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} width={self.width} kept="

    @property
    def amount(self) -> float:
        """Kept inputs of a tile."""
        return self.kept / max(1, self.tiles)


def predicted_us(problem: SimtProblem, launch: SimtLaunch, num_sms: int) -> float:
    """By the launch level of the performance model."""
    block_m = launch.block_m(problem.width)
    blocks = problem.tiles * -(-problem.m // block_m) * launch.splits
    return simt_us(launch, blocks, problem.amount / launch.splits * problem.width * block_m, num_sms)


def candidates(problem: SimtProblem, num_sms: int, *, slack: float = 1.5) -> list[SimtLaunch]:
    """The launches worth timing, best predicted first: those predicted within `slack` of the best."""
    predicted = {launch: predicted_us(problem, launch, num_sms) for launch in SPACE[problem.width]}
    bound = slack * min(predicted.values())
    worth = sorted((launch for launch in predicted if predicted[launch] <= bound), key=predicted.__getitem__)
    return worth[:MOST_CANDIDATES]


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    SimtLaunch,
    describe=lambda packed, problem: SimtProblem.of(packed, problem.m),
    worth_timing=candidates,
    untuned=lambda problem, num_sms: candidates(problem, num_sms)[0],
)
