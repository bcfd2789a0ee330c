"""Launch parameters of the n:m kernel for few rows: searched, and stored by problem."""

from sparsefront_kernels.common.lane_launch import LaneProblem, tuned_lanes
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight
from sparsefront_kernels.problem import Problem

KERNEL = "n_m_small_m"
VERSION = 1  # raised when a change of the kernel makes old measurements useless


def described(packed: NMSmallMPackedWeight, problem: Problem) -> LaneProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    return LaneProblem(
        m=problem.m,
        k=packed.k,
        n=packed.n,
        kept=packed.kept,
        group_size=packed.group_size,
        element_bytes=packed.chunks.values.element_size(),
        bits=packed.bits,
    )


LAUNCHES = tuned_lanes(KERNEL, VERSION, described)
