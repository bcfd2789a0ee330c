"""Launch parameters of the ELL kernel for few rows: searched, and stored by problem."""

from sparsefront_kernels.common.lane_launch import LaneProblem, fits, tuned_lanes
from sparsefront_kernels.ell.small_m.packed_weight import COLUMN_BITS, ELLSmallMPackedWeight
from sparsefront_kernels.problem import Problem

KERNEL = "ell_small_m"
VERSION = 1  # raised when a change of the kernel makes old measurements useless


def lane_problem(m: int, k: int, n: int, kept: int, element_bytes: int, block: int) -> LaneProblem:
    """A product whose outputs each keep `kept` of all inputs."""
    return LaneProblem(m, k, n, kept, k, element_bytes, COLUMN_BITS, block)


def inputs_unsupported_reason(problem: LaneProblem) -> str | None:
    """Why so many inputs are too many, or None."""
    return None if fits(problem) else f"brings all inputs into shared memory, and {problem.k} do not fit"


def described(packed: ELLSmallMPackedWeight, problem: Problem) -> LaneProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    size = packed.chunks.values.element_size()
    return lane_problem(problem.m, packed.k, packed.n, packed.kept, size, packed.block)


LAUNCHES = tuned_lanes(KERNEL, VERSION, described)
