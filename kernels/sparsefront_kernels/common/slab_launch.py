"""Launch parameters of kernels of which every lane owns rows of X: the space, and which are worth timing."""

import itertools
from dataclasses import dataclass
from math import ceil

from sparsefront_kernels.common.dependent_launch import DEPENDENT_LAUNCH, best_first
from sparsefront_kernels.common.slab_lists import SLAB, SLOT_BYTES, SlabWeight
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem
from sparsefront_kernels.tuning import TunedLaunches

MOST_CANDIDATES = 16
MOST_OUTPUTS = 8  # of a warp: groups times block
MOST_WARPS = 16
SM_SHARED_BYTES = 233_472
MOST_ROW_BLOCKS = 65_535  # of a grid


@dataclass(frozen=True, order=True)
class SlabLaunch:
    """Launch parameters.

    Args:
        groups: of outputs, of a warp: 1, 2, 4 or 8, with at most 8 outputs together.
        warps: of a block, 4 to 16.
        stages: slabs of X in shared memory: 1, or 2 where the next one comes while one is multiplied.
        dependent_launch: as in `LaneLaunch`.
    """

    groups: int
    warps: int
    stages: int
    dependent_launch: str = "late"


@dataclass(frozen=True)
class SlabProblem:
    """What decides how fast launch parameters are.

    Args:
        m, k: of the product.
        groups, block: outputs are `groups` times `block`.
        quads: of all lists.
        element_bytes: of X, W and Y.
        x_feature_major: whether rows of X lie side by side.
    """

    m: int
    k: int
    groups: int
    block: int
    quads: int
    element_bytes: int
    x_feature_major: bool

    @property
    def shape(self) -> str:
        layout = "feature" if self.x_feature_major else "row"
        return f"m={self.m} k={self.k} groups={self.groups} block={self.block} bytes={self.element_bytes} x={layout} quads="

    @property
    def amount(self) -> float:
        return float(self.quads)


def described(packed: SlabWeight, problem: Problem) -> SlabProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    values = packed.lists.values
    quads, _, block = values.shape
    feature_major = problem.layout in X_FEATURE_MAJOR
    size = values.element_size()
    return SlabProblem(problem.m, problem.k, problem.n // block, block, quads, size, feature_major)


SPACE = tuple(
    SlabLaunch(groups, warps, stages) for groups, warps, stages in itertools.product((1, 2, 4, 8), (4, 8, 16), (1, 2))
)


def possible(problem: SlabProblem, launch: SlabLaunch) -> bool:
    """Whether the launch can compute the problem; two stages make no sense for a single slab."""
    return (
        launch.groups in (1, 2, 4, 8)
        and launch.groups * problem.block <= MOST_OUTPUTS
        and 1 <= launch.warps <= MOST_WARPS
        and launch.stages in ((1, 2) if problem.k > SLAB else (1,))
        and launch.dependent_launch in DEPENDENT_LAUNCH
    )


def predicted_us(problem: SlabProblem, launch: SlabLaunch, num_sms: int) -> float:
    """Coarse: shared memory reads or instructions at 1.7 GHz, whichever take longer, and bringing X; of the busiest SM.

    It orders candidates, nothing else; the counts are of the compiled code, not fitted to measurements.
    """
    row_blocks = ceil(problem.m * problem.element_bytes / SLOT_BYTES)
    blocks = ceil(problem.groups / (launch.groups * launch.warps)) * row_blocks
    slab_bytes = launch.stages * min(problem.k, SLAB) * SLOT_BYTES
    at_once = max(1, min(SM_SHARED_BYTES // (slab_bytes + 1024), 2048 // (32 * launch.warps * 2)))
    rows = 8 // problem.element_bytes  # of a lane
    widened = rows if problem.element_bytes == 2 else 0
    of_quad = max(4 * 2.5, 4 * (3.5 + rows * problem.block + widened + problem.block / 2) / 4 + 2)
    quads = problem.quads / problem.groups * launch.groups * launch.warps  # of a block
    staging = problem.k * SLOT_BYTES / (40 if problem.x_feature_major else 25)  # cycles, of a block
    multiplying = quads * of_quad
    alone = min(at_once, ceil(blocks / num_sms)) == 1  # nothing else hides what a block waits for
    block_cycles = staging + multiplying if alone and launch.stages == 1 else max(staging, multiplying) + 0.2 * staging
    latency = 60 * problem.quads / problem.groups * launch.groups  # of a warp's quads one after the other
    return 2.5 + max(block_cycles * ceil(blocks / num_sms), latency) / 1.7e3


def candidates(problem: SlabProblem, num_sms: int, *, most: int = MOST_CANDIDATES) -> list[SlabLaunch]:
    """The launches worth timing, best predicted first; of the first few also with the other ways of dependent launch."""
    worth = [launch for launch in SPACE if possible(problem, launch)]
    return best_first(worth, lambda launch: predicted_us(problem, launch, num_sms), most)


def tuned_slabs(kernel: str, version: int) -> TunedLaunches:
    """The launches of a kernel, to be searched and stored.

    Args:
        version: raised when a change of the kernel makes old measurements useless.
    """
    return TunedLaunches(
        kernel,
        version,
        SlabLaunch,
        describe=described,
        worth_timing=candidates,
        untuned=lambda problem, num_sms: candidates(problem, num_sms, most=1)[0],
    )


def rows_unsupported_reason(m: int, element_bytes: int) -> str | None:
    """Why so many rows of X cannot be multiplied, or None."""
    most = MOST_ROW_BLOCKS * (SLOT_BYTES // element_bytes)
    return None if m <= most else f"takes up to {most} rows of X, not {m}"
