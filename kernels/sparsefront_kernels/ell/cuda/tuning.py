"""Launch parameters of the ELL kernel: searched, and stored by problem."""

from sparsefront_kernels.common.slab_launch import SlabProblem, described_lists, tuned_slabs
from sparsefront_kernels.ell.cuda.packed_weight import ELLCudaPackedWeight
from sparsefront_kernels.problem import Problem

KERNEL = "ell_cuda"
VERSION = 1  # raised when a change of the kernel makes old measurements useless


def described(packed: ELLCudaPackedWeight, problem: Problem) -> SlabProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    return described_lists(packed.lists, problem)


LAUNCHES = tuned_slabs(KERNEL, VERSION, described)
