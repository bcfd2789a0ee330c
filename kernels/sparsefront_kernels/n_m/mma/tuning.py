"""Launch parameters of the n:4 kernel on tensor cores: searched, and stored by problem."""

from dataclasses import replace
from math import ceil

from sparsefront_kernels.common.dependent_launch import best_first
from sparsefront_kernels.common.lane_launch import SPACE, LaneLaunch, LaneProblem, possible
from sparsefront_kernels.n_m.small_m import tuning as small_m
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning import TunedLaunches

KERNEL = "n_m_mma"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
ROW_PADDING = 16  # bytes between rows of X in shared memory
MOST_CANDIDATES = 16


def mma_problem(problem: LaneProblem) -> LaneProblem:
    """As the kernel brings X: rows that are contiguous along K, some bytes apart."""
    return replace(problem, row_padding=ROW_PADDING)


def described(packed: NMSmallMPackedWeight, problem: Problem) -> LaneProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    return mma_problem(small_m.described(packed, problem))


def predicted_us(problem: LaneProblem, launch: LaneLaunch, num_sms: int) -> float:
    """Coarse: bytes at 4.25 TB/s or instructions at 1.7 GHz; it orders candidates, nothing else."""
    blocks = ceil(problem.strips / launch.strips) * launch.splits
    of_warp = ceil(ceil(problem.chunks / launch.splits) / launch.shares)  # chunks
    busiest = ceil(blocks / num_sms)
    stream_us = problem.strips * problem.chunks * problem.chunk_bytes / 4.25e6
    products = 16 / problem.kept * launch.rows / 8  # of a chunk, and two to a load of X
    cycles = max((32 * 7 + 2 * products) / 4, 2 * products) * of_warp * launch.strips * launch.shares * busiest
    staged = problem.k / launch.splits * launch.rows / 64e3 * min(busiest, 2)
    return 2.5 + max(stream_us, cycles / 1.7e3) + 0.35 * of_warp**0.5 + staged + 0.2 * (launch.splits > 1)


def candidates(problem: LaneProblem, num_sms: int, *, most: int = MOST_CANDIDATES) -> list[LaneLaunch]:
    """The launches worth timing, best predicted first."""
    rows = max(8, 1 << (problem.m - 1).bit_length())
    space = [replace(launch, rows=rows) for launch in SPACE if launch.rows == 1]
    worth = [launch for launch in space if possible(problem, launch)]
    return best_first(worth, lambda launch: predicted_us(problem, launch, num_sms), most)


LAUNCHES = TunedLaunches(
    KERNEL,
    VERSION,
    LaneLaunch,
    describe=described,
    worth_timing=candidates,
    untuned=lambda problem, num_sms: candidates(problem, num_sms, most=1)[0],
)
