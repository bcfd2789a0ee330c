"""Launch parameters of the float32 kernel: the search space, a performance model that prunes it, and what was measured."""

import itertools
from dataclasses import dataclass

import torch

from sparsefront_kernels.gathered.aligned_operands import run_length
from sparsefront_kernels.gathered.simt.packed_weight import WIDTHS, SimtPackedWeight
from sparsefront_kernels.gathered.simt.spmm import MOST_STAGES, SimtLaunch
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_simt"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
MOST_CANDIDATES = 18

# Microseconds, fitted to measurements on an H200.
_START = 3.0  # of the launch
_TAIL = {16: 3.0, 8: 2.0}  # of a block beyond its products, by columns of a thread
_SPLIT = 0.7  # of a further block that shares a work tile
# Factors on the time of products: shorter rows of X come slower; clusters of more than two blocks leave SMs idle
_WARP_SPLIT_K = {1: 1.0, 2: 1.04, 4: 1.13}
_LARGE_CLUSTER = 1.25
# Products a microsecond on one multiprocessor by its number of blocks, by columns of a thread
_RATE = {16: (150e3, 200e3), 8: (110e3, 165e3, 175e3)}


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
    """Coarse predicted latency: full rounds of blocks, then one in which SMs have fewer blocks."""
    block_m = launch.block_m(problem.width)
    products = problem.amount / launch.splits * problem.width * block_m  # of a block
    products *= _WARP_SPLIT_K[launch.warp_split_k] * (_LARGE_CLUSTER if launch.splits > 2 else 1.0)
    rates = _RATE[launch.columns]
    blocks = problem.tiles * -(-problem.m // block_m) * launch.splits
    rounds, rest = divmod(blocks, num_sms * launch.blocks_per_sm)
    most = -(-rest // num_sms)  # blocks of an SM in the last round

    def round_us(share: int) -> float:
        return _TAIL[launch.columns] + share * products / rates[share - 1] if share else 0.0

    return _START + rounds * round_us(launch.blocks_per_sm) + round_us(most) + _SPLIT * (launch.splits - 1)


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
