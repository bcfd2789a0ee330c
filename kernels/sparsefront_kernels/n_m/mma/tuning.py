"""Launch parameters of the n:m kernel on tensor cores: searched, and stored by problem."""

import itertools
from dataclasses import replace
from math import ceil

from sparsefront_kernels.common import lane_launch
from sparsefront_kernels.common.lane_launch import PIECES, LaneLaunch, LaneProblem, segments
from sparsefront_kernels.common.launch import best_first
from sparsefront_kernels.n_m.small_m import tuning as small_m
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "n_m_mma"
VERSION = 3  # raised when a change of the kernel makes old measurements useless
ROW_PADDING = 16  # bytes between rows of X in shared memory
MOST_CANDIDATES = 24
OF_EACH_SPLIT = 5
SM_SHARED_BYTES = 233_472
SLOTS_OF = 32  # of these groups what is kept of X is gathered from slots
CHUNK_CYCLES, ROW_CYCLES = (
    36,
    {(2, 4): 1, (1, 4): 2, (3, 32): 12},
)  # of an SM's shared memory for a chunk, and for each row of X
CHUNK_LATENCY = 500  # cycles until a warp by itself has multiplied a chunk, of groups of four
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
    for strips, shares in itertools.product((1, 2, 4, 5, 8, 10), (1, 2, 4, 8))
    if 4 <= strips * shares <= 16
    for splits, stages in itertools.product(CLUSTERS_REACH, (2, 4, 8))
)


def mma_problem(problem: LaneProblem) -> LaneProblem:
    """As the kernel brings X and the weight: rows contiguous along K, some bytes apart; chunks of their own for groups of 32."""
    problem = replace(problem, row_padding=ROW_PADDING)
    return problem if problem.group_size != SLOTS_OF else replace(problem, chunk=24, chunk_place_bytes=512)


def rows_of(problem: LaneProblem) -> int:
    """Of X, that a warp multiplies."""
    return max(16 if problem.group_size == SLOTS_OF else 8, 1 << (problem.m - 1).bit_length())


def described(packed: NMSmallMPackedWeight, problem: Problem) -> LaneProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    return mma_problem(small_m.described(packed, problem))


def possible(problem: LaneProblem, launch: LaneLaunch) -> bool:
    """Whether the launch can compute the problem."""
    most_warps = 16 if launch.rows <= 16 else 8  # more sums take more registers
    few = launch.rows < 16 and problem.group_size == SLOTS_OF
    return launch.stages >= 1 and not few and lane_launch.possible(problem, launch, most_warps)


def predicted_us(problem: LaneProblem, launch: LaneLaunch, num_sms: int) -> float:
    """Coarse, of the busiest SM, by the counts of ../README.md. It orders candidates, nothing else."""
    fitting = segments(problem, launch)
    assert fitting is not None, "possible launches alone are predicted"
    blocks, warps = ceil(problem.strips / launch.strips) * launch.splits, launch.strips * launch.shares
    of_sm = ceil(blocks / (num_sms * CLUSTERS_REACH[launch.splits]))
    fit = min(SM_SHARED_BYTES // (fitting.shared_bytes + 1024), (16 if launch.rows <= 16 else 8) // warps)
    at_once = max(1, min(of_sm, fit))  # blocks of an SM
    of_split = ceil(problem.chunks / launch.splits)
    of_warp = ceil(of_split / launch.shares)  # chunks
    chunks = of_warp * warps * of_sm  # of an SM
    on_their_way = min(launch.stages, of_warp) * warps * at_once * problem.chunk_bytes
    x_bytes = problem.k / launch.splits * launch.rows * problem.element_bytes  # of a block
    weight_bytes = chunks * problem.chunk_bytes
    stream = max(weight_bytes / min(19, on_their_way / 1700), (weight_bytes + x_bytes * of_sm) / 40)  # cycles
    busy = chunks * (CHUNK_CYCLES + ROW_CYCLES[problem.kept, problem.group_size] * launch.rows)
    latency = CHUNK_LATENCY * (3 if problem.group_size == SLOTS_OF else 1)
    alone = of_warp * latency * ceil(of_sm / at_once)  # of a warp
    # until there is something to multiply: a piece of X, or two where warps put it into slots, eight rows of a chunk at a time
    in_slots = problem.group_size == SLOTS_OF
    tasks = ceil(fitting.chunks * launch.rows / 8 / (PIECES / 2) / warps) if in_slots else 0
    segment_bytes = x_bytes * fitting.chunks / of_split / PIECES * (1 + in_slots)
    first = (1200 + max(600 * tasks, segment_bytes / 40)) * ceil(of_split / fitting.chunks)
    return (
        2.5 + (max(stream, busy, alone) + alone / 8 + first * ceil(of_sm / at_once)) / 1.7e3 + 0.4 * (launch.splits > 1)
    )


def candidates(problem: LaneProblem, num_sms: int, *, most: int = MOST_CANDIDATES) -> list[LaneLaunch]:
    """The launches worth timing, best predicted first, of each number of splits a few."""
    by_splits: dict[int, list[LaneLaunch]] = {}
    for launch in (replace(launch, rows=rows_of(problem)) for launch in SPACE):
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
