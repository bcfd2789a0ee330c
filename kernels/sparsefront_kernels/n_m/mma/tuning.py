"""Launch parameters of the n:m kernel on tensor cores: searched, and stored by problem."""

import itertools
from dataclasses import replace
from math import ceil

from sparsefront_kernels.common import lane_launch
from sparsefront_kernels.common.dependent_launch import best_first
from sparsefront_kernels.common.lane_launch import MOST_WARPS, PIECES, LaneLaunch, LaneProblem, segments
from sparsefront_kernels.n_m.small_m import tuning as small_m
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "n_m_mma"
VERSION = 2  # raised when a change of the kernel makes old measurements useless
ROW_PADDING = 16  # bytes between rows of X in shared memory
MOST_CANDIDATES = 24
OF_EACH_SPLIT = 5
SM_SHARED_BYTES = 233_472
CHUNK_CYCLES = {
    4: 125,
    32: 300,
}  # of an SM, for a chunk with 16 rows of X, by the size of groups: instructions on integers
PRODUCT_CYCLES = 2  # of an SM
CLUSTERS_REACH = {
    1: 1.0,
    2: 1.0,
    3: 0.95,
    4: 0.85,
    6: 0.85,
    8: 0.8,
}  # of the SMs: parts of the GPU have no multiple of them
SPACE = tuple(
    LaneLaunch(strips, shares, splits, 8, stages=stages)
    for strips, shares in itertools.product((1, 2, 4, 8), repeat=2)
    if 4 <= strips * shares <= MOST_WARPS
    for splits, stages in itertools.product(CLUSTERS_REACH, (2, 4, 8))
)


def mma_problem(problem: LaneProblem) -> LaneProblem:
    """As the kernel brings X: rows that are contiguous along K, some bytes apart."""
    return replace(problem, row_padding=ROW_PADDING)


def described(packed: NMSmallMPackedWeight, problem: Problem) -> LaneProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    return mma_problem(small_m.described(packed, problem))


def possible(problem: LaneProblem, launch: LaneLaunch) -> bool:
    """Whether the launch can compute the problem."""
    return launch.stages >= 1 and lane_launch.possible(problem, launch)


def predicted_us(problem: LaneProblem, launch: LaneLaunch, num_sms: int) -> float:
    """Coarse, of the busiest SM, by the counts of ../README.md. It orders candidates, nothing else."""
    fitting = segments(problem, launch)
    assert fitting is not None, "possible launches alone are predicted"
    blocks, warps = ceil(problem.strips / launch.strips) * launch.splits, launch.strips * launch.shares
    reached = num_sms * CLUSTERS_REACH[launch.splits]  # SMs
    fit = min(SM_SHARED_BYTES // (fitting.shared_bytes + 1024), (16 if launch.rows <= 16 else 8) // warps)
    at_once = max(1, min(ceil(blocks / reached), fit))  # blocks of an SM
    of_split = ceil(problem.chunks / launch.splits)
    of_warp = ceil(of_split / launch.shares)  # chunks
    chunks = of_warp * warps * ceil(blocks / reached)  # of an SM
    on_their_way = min(launch.stages, of_warp) * warps * at_once * problem.chunk_bytes
    weight_bytes = chunks * problem.chunk_bytes
    x_bytes = problem.k / launch.splits * launch.rows * problem.element_bytes  # of a block
    stream = max(
        weight_bytes / min(19, on_their_way / 1700), (weight_bytes + x_bytes * ceil(blocks / reached)) / 40
    )  # cycles
    products = problem.group_size // 4 * 32 // problem.kept * launch.rows // 8  # of a chunk
    busy = max(CHUNK_CYCLES[problem.group_size], products * PRODUCT_CYCLES)
    issue = chunks * busy * max(1, 8 / (warps * at_once))  # fewer than eight warps do not fill an SM
    first = 1200 * ceil(of_split / fitting.chunks) + x_bytes / PIECES / 40  # until there is something to multiply
    return 2.5 + (max(stream, issue) + first) / 1.7e3 + 0.4 * (launch.splits > 1)


def candidates(problem: LaneProblem, num_sms: int, *, most: int = MOST_CANDIDATES) -> list[LaneLaunch]:
    """The launches worth timing, best predicted first, of each number of splits a few."""
    rows = max(8, 1 << (problem.m - 1).bit_length())
    by_splits: dict[int, list[LaneLaunch]] = {}
    for launch in (replace(launch, rows=rows) for launch in SPACE):
        of_warp = ceil(ceil(problem.chunks / launch.splits) / launch.shares)
        if possible(problem, launch) and launch.stages < 2 * max(2, of_warp):  # more slots would stay empty
            by_splits.setdefault(launch.splits, []).append(launch)

    def predicted(launch: LaneLaunch) -> float:
        return predicted_us(problem, launch, num_sms)

    worth = [launch for launches in by_splits.values() for launch in sorted(launches, key=predicted)[:OF_EACH_SPLIT]]
    return best_first(worth, predicted, most)


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    LaneLaunch,
    describe=described,
    worth_timing=candidates,
    untuned=lambda problem, num_sms: candidates(problem, num_sms, most=1)[0],
)
