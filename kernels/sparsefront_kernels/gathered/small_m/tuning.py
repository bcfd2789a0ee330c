"""Launch parameters of the kernel for few rows: the search space, what a launch counts for its cost, and what was measured."""

import itertools
from dataclasses import dataclass, replace
from math import ceil

from sparsefront_kernels.gathered.small_m.packed_weight import CHUNK, FRAGMENT, SmallMPackedWeight
from sparsefront_kernels.gathered.small_m.spmm import PDL_MODES, SmallMLaunch, column_blocks
from sparsefront_kernels.performance_model.launch_costs import small_m_us
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "gathered_small_m"  # with X feature-major
KERNEL_ROW_X = "gathered_small_m_row_x"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
MOST_CANDIDATES = 18

_SPLITS = (1, 2, 3, 4, 6, 8)
SPACE = tuple(
    SmallMLaunch("lanes", fragments, splits, warps, stages)
    for fragments, splits, warps, stages in itertools.product((1, 2, 4, 8), _SPLITS, (4, 8), (2, 4))
) + tuple(
    SmallMLaunch("shared", fragments, splits, 8, stages, stage_chunks)
    for fragments, splits, stages, stage_chunks in itertools.product((1, 2, 4), _SPLITS, (2, 4), (2, 4, 8))
)


@dataclass(frozen=True)
class SmallMProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k, n: of the product.
        width: outputs of a row tile.
        row_tiles, chunks: how many there are.
        most_chunks: of any row tile.
        element_bytes: of X, W and Y.
        x_feature_major: whether X is [K, M], whose neighbouring rows of one input are loaded at once.
    """

    m: int
    k: int
    n: int
    width: int
    row_tiles: int
    chunks: int
    most_chunks: int
    element_bytes: int = 2
    x_feature_major: bool = True

    @classmethod
    def of(cls, packed: SmallMPackedWeight, m: int, *, x_feature_major: bool) -> "SmallMProblem":
        """Of a packed weight and m rows of X."""
        return cls(
            m=m,
            k=packed.k,
            n=packed.n,
            width=packed.width,
            row_tiles=len(packed.row_tiles),
            chunks=len(packed.panels),
            most_chunks=packed.most_chunks,
            element_bytes=packed.panels.element_size(),
            x_feature_major=x_feature_major,
        )

    @property
    def shape(self) -> str:
        return f"m={self.m} k={self.k} n={self.n} width={self.width} bytes={self.element_bytes} chunks="

    @property
    def amount(self) -> float:
        """Chunks of a row tile."""
        return self.chunks / max(1, self.row_tiles)


_SMALL_BYTES = 3 << 20  # weights below: the next kernel may start at once, since it does not delay this one's stream


def predicted_us(problem: SmallMProblem, launch: SmallMLaunch, num_sms: int) -> float:
    """By the launch level of the performance model."""
    outputs = problem.width if launch.gather == "shared" else FRAGMENT * launch.fragments  # of a block
    blocks = problem.row_tiles * (problem.width // outputs) * launch.splits
    chunks = max(1, ceil(problem.amount / launch.splits))  # of a block
    at_once = launch.blocks_at_once(problem.m, problem.width, problem.element_bytes, problem.most_chunks)
    return small_m_us(
        launch.gather,
        blocks=blocks,
        streamed_bytes=blocks * chunks * CHUNK * outputs * problem.element_bytes,
        gathered_bytes=blocks * chunks * CHUNK * max(32, problem.m * problem.element_bytes),
        turns=launch.turns(chunks, problem.m, problem.width, problem.element_bytes),
        waves=ceil(blocks / (num_sms * at_once)),
        splits=launch.splits,
        sums=outputs * problem.m * launch.warp_split_k(problem.width) * ceil(blocks / num_sms),
        rows=column_blocks(problem.m),
    )


def candidates(problem: SmallMProblem, num_sms: int, *, most: int = MOST_CANDIDATES) -> list[SmallMLaunch]:
    """The launches worth timing, best predicted first; of the first few also with the other `pdl` modes."""
    worth = [launch for launch in SPACE if possible(problem, launch)]
    small = problem.chunks * CHUNK * problem.width * problem.element_bytes < _SMALL_BYTES
    first = "prefetch" if small else "prefetch_late"
    best = sorted(worth, key=lambda launch: predicted_us(problem, launch, num_sms))[:most]
    best = [replace(launch, pdl=first) for launch in best]
    others = [replace(launch, pdl=way) for launch in best[:3] for way in PDL_MODES[1:] if way != first]
    return (best[: most - len(others)] + others)[:most] if most > len(others) else best[:most]


def possible(problem: SmallMProblem, launch: SmallMLaunch) -> bool:
    """Whether the launch can compute the problem."""
    return launch.possible(problem.m, problem.width, problem.element_bytes, problem.most_chunks)


def _launches(kernel: str, *, x_feature_major: bool) -> TunedLaunches:
    return TunedLaunches(
        kernel,
        VERSION,
        SmallMLaunch,
        describe=lambda packed, problem: SmallMProblem.of(packed, problem.m, x_feature_major=x_feature_major),
        worth_timing=candidates,
        untuned=lambda problem, num_sms: candidates(problem, num_sms, most=1)[0],
    )


LAUNCHES = _launches(KERNEL, x_feature_major=True)
ROW_X_LAUNCHES = _launches(KERNEL_ROW_X, x_feature_major=False)  # such rows are read in another way
