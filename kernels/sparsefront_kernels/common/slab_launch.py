"""Launch parameters of kernels of which every lane owns rows of X: the space, and which are worth timing."""

import itertools
from dataclasses import dataclass
from math import ceil

from sparsefront_kernels.common.dependent_launch import DEPENDENT_LAUNCH, best_first
from sparsefront_kernels.common.slab_lists import SLAB, SlabWeight
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem
from sparsefront_kernels.tuning import TunedLaunches

MOST_CANDIDATES = 20
SLOT_BYTES, PITCH = 128, 144  # of rows of X of an input; from one input to the next in shared memory
TOGETHER = 4  # groups of outputs that a warp multiplies by at once
MOST_WARPS = 16
MOST_SPLITS = 8  # blocks of a cluster
MOST_SLABS = 6
BLOCK_SHARED_BYTES, SM_SHARED_BYTES = 232_448, 233_472
MOST_ROW_BLOCKS = 65_535  # of a grid


@dataclass(frozen=True, order=True)
class SlabLaunch:
    """Launch parameters.

    Args:
        sets: of four groups of outputs, of a warp, one after the other.
        warps: of a block, 4 to 16.
        splits: blocks of a cluster, which share K: 1 to 8.
        slabs: of 256 inputs, in shared memory at once: 1 to 6.
        dependent_launch: as in `LaneLaunch`.
    """

    sets: int
    warps: int
    splits: int
    slabs: int
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

    @property
    def slab_count(self) -> int:
        return ceil(self.k / SLAB)

    @property
    def rows(self) -> int:
        """Of X, of a block."""
        return SLOT_BYTES // self.element_bytes


def described(packed: SlabWeight, problem: Problem) -> SlabProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    lists = packed.lists
    block, size = lists.values.shape[2], lists.values.element_size()
    feature_major = problem.layout in X_FEATURE_MAJOR
    return SlabProblem(problem.m, problem.k, problem.n // block, block, lists.quads, size, feature_major)


SPACE = tuple(
    SlabLaunch(sets, warps, splits, slabs)
    for sets, warps, splits, slabs in itertools.product(
        (1, 2, 4, 8), (4, 8, 16), (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 5, 6)
    )
)


def passes(problem: SlabProblem, launch: SlabLaunch) -> int:
    """How often the block that has most slabs brings X."""
    return ceil(ceil(problem.slab_count / launch.splits) / launch.slabs)


def shared_bytes(problem: SlabProblem, launch: SlabLaunch) -> int:
    """Of a block: inputs, and sums where they are kept between passes or added up by a cluster."""
    inputs = min(problem.k, launch.slabs * SLAB) * PITCH
    outputs = TOGETHER * launch.warps * launch.sets * problem.block
    return inputs + (outputs * problem.rows * 4 if passes(problem, launch) > 1 or launch.splits > 1 else 0)


def possible(problem: SlabProblem, launch: SlabLaunch) -> bool:
    """Whether the launch can compute the problem: no block is without slabs, and none has room for more than it needs."""
    return (
        launch.sets >= 1
        and 1 <= launch.warps <= MOST_WARPS
        and 1 <= launch.splits <= min(MOST_SPLITS, max(1, problem.slab_count))
        and 1 <= launch.slabs <= min(MOST_SLABS, max(1, ceil(problem.slab_count / launch.splits)))
        and shared_bytes(problem, launch) <= BLOCK_SHARED_BYTES
        and launch.dependent_launch in DEPENDENT_LAUNCH
    )


def predicted_us(problem: SlabProblem, launch: SlabLaunch, num_sms: int) -> float:
    """Coarse: shared memory reads or instructions at 1.7 GHz, whichever take longer, and bringing X; of the busiest SM.

    It orders candidates, nothing else; the counts are of the compiled code, not fitted to measurements.
    """
    together = TOGETHER * launch.warps * launch.sets
    blocks = ceil(problem.groups / together) * ceil(problem.m / problem.rows) * launch.splits
    of_sm = ceil(blocks / num_sms)
    at_once = min(SM_SHARED_BYTES // (shared_bytes(problem, launch) + 1024), 2048 // (32 * launch.warps * 2))
    rounds = ceil(of_sm / max(1, at_once))
    fmas = problem.block * 16 // problem.element_bytes  # of a lane, of an entry
    widened = fmas // problem.block + problem.block if problem.element_bytes == 2 else 0
    words = 4 + problem.block * problem.element_bytes / 4 + 0.5  # that an entry brings into registers: X, values, place
    share = ceil(problem.slab_count / launch.splits) / max(1, problem.slab_count)  # of K, of the block that has most
    entries = 4 * problem.quads / max(1, problem.groups) * share  # of a list
    multiplying = (
        max(words, (fmas + widened + 3) / 4) * entries * launch.warps * launch.sets
    )  # of a block, all cycles of its SM
    waiting = launch.sets * (150 + entries / 4 * 80)  # of a warp, one thing after the other
    staging = problem.k * share * SLOT_BYTES / (50 if problem.x_feature_major else 20)
    sums = together * problem.block * problem.rows * 4 / 128  # cycles to read or to write them all
    keeping = sums * (2 * (passes(problem, launch) - 1) + (5 if launch.splits > 1 else 0))
    first = (
        staging / passes(problem, launch) / launch.sets
    )  # what nothing hides: later slabs come while the first set waits
    unhidden = rounds * (600 * passes(problem, launch) + first + (1200 if launch.splits > 1 else 0))
    return 2.0 + (unhidden + max(of_sm * (multiplying + keeping + 0.3 * staging), rounds * (waiting + keeping))) / 1.7e3


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
