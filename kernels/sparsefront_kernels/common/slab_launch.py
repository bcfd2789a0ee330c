"""Launch parameters of kernels of which every lane owns rows of X: the space, and which are worth timing."""

import itertools
from dataclasses import dataclass
from math import ceil

from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH, best_first
from sparsefront_kernels.common.slab_lists import SLAB, SlabWeight
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Problem
from sparsefront_kernels.tuning import TunedLaunches

MOST_CANDIDATES = 20
SLOT_BYTES = 128  # of rows of X of an input
MOST_WARPS = 16
MOST_SPLITS = 8  # blocks of a cluster
MOST_SLABS = 7
BLOCK_SHARED_BYTES, SM_SHARED_BYTES = 232_448, 233_472
MOST_ROW_BLOCKS = 65_535  # of a grid


@dataclass(frozen=True, order=True)
class SlabLaunch:
    """Launch parameters.

    Args:
        sets: of `together` groups of outputs, of a warp, one after the other.
        warps: of a block, 2 to 16.
        splits: blocks of a cluster, which share K: 1 to 8.
        slabs: of 256 inputs, in shared memory at once: 1 to 7.
        lane_units: of 16 bytes of rows of X, of a lane: 1, or 2 for single weights.
        dependent_launch: as in `LaneLaunch`.
    """

    sets: int
    warps: int
    splits: int
    slabs: int
    lane_units: int
    dependent_launch: str = "late"

    @property
    def together(self) -> int:
        """Groups of outputs that a warp multiplies by at once."""
        return 4 * self.lane_units


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
    SlabLaunch(*values)
    for values in itertools.product(
        (1, 2, 4, 8), (2, 4, 8, 16), range(1, MOST_SPLITS + 1), range(1, MOST_SLABS + 1), (1, 2)
    )
)


def slabs_of_block(problem: SlabProblem, launch: SlabLaunch) -> int:
    """Of the block of a cluster that has most."""
    return max(1, ceil(problem.slab_count / launch.splits))


def passes(problem: SlabProblem, launch: SlabLaunch) -> int:
    """How often that block brings X."""
    return ceil(slabs_of_block(problem, launch) / launch.slabs)


def shared_bytes(problem: SlabProblem, launch: SlabLaunch) -> int:
    """Of a block: inputs, and sums where they are kept between passes or added up by a cluster."""
    inputs = min(problem.k, launch.slabs * SLAB) * SLOT_BYTES
    outputs = launch.together * launch.warps * launch.sets * problem.block
    return inputs + (outputs * problem.rows * 4 if passes(problem, launch) > 1 or launch.splits > 1 else 0)


def possible(problem: SlabProblem, launch: SlabLaunch) -> bool:
    """Whether the launch can compute the problem, and no smaller cluster or room for slabs does so in as many passes."""
    if not (launch.sets >= 1 and 1 <= launch.splits <= MOST_SPLITS and 1 <= launch.slabs <= MOST_SLABS):
        return False
    slabs = slabs_of_block(problem, launch)
    return (
        1 <= launch.warps <= MOST_WARPS
        and launch.splits == max(1, ceil(problem.slab_count / slabs))
        and launch.slabs == ceil(slabs / passes(problem, launch))
        and launch.lane_units in ((1, 2) if problem.block == 1 else (1,))
        and shared_bytes(problem, launch) <= BLOCK_SHARED_BYTES
        and launch.dependent_launch in DEPENDENT_LAUNCH
    )


def predicted_us(problem: SlabProblem, launch: SlabLaunch, num_sms: int) -> float:
    """Coarse: shared memory reads or instructions at 1.7 GHz, whichever take longer, and bringing X; of the busiest SM.

    It orders candidates, nothing else; the counts are of the compiled code, not fitted to measurements.
    """
    together = launch.together * launch.warps * launch.sets
    blocks = ceil(problem.groups / together) * ceil(problem.m / problem.rows) * launch.splits
    of_sm = ceil(blocks / num_sms)
    at_once = min(
        SM_SHARED_BYTES // (shared_bytes(problem, launch) + 1024), MOST_WARPS // launch.warps
    )  # of registers, 16 warps
    rounds = ceil(of_sm / max(1, at_once))
    of_x = 4 * launch.lane_units  # words of a lane, of an entry
    fmas = problem.block * of_x * 4 // problem.element_bytes
    widened = of_x * 2 + problem.block if problem.element_bytes == 2 else 0
    words = (
        of_x + problem.block * problem.element_bytes / 4 + 0.5
    )  # that an entry brings into registers: X, values, place
    share = slabs_of_block(problem, launch) / max(1, problem.slab_count)  # of K
    entries = 4 * problem.quads / max(1, problem.groups) * share  # of a list
    multiplying = (
        max(words, (fmas + widened + of_x / 2 + 1) / 4) * entries * launch.warps * launch.sets
    )  # of a block, all cycles of its SM
    multiplying *= 1 + 1.5 / (launch.warps * max(1, min(of_sm, at_once)))  # few warps do not keep an SM busy
    waiting = launch.sets * (150 + entries * (8 + 8 * launch.lane_units))  # of a warp, one thing after the other
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
