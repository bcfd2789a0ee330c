"""Launch parameters of the CSR kernel: searched, and stored by problem."""

from sparsefront_kernels.common.slab_launch import SlabProblem, described_lists, tuned_slabs
from sparsefront_kernels.csr.cuda.packed_weight import CSRCudaPackedWeight
from sparsefront_kernels.problem import Problem

KERNEL = "csr_cuda"
VERSION = 1  # raised when a change of the kernel makes old measurements useless


def described(packed: CSRCudaPackedWeight, problem: Problem) -> SlabProblem:
    """What of a packed weight and a product decides how fast launch parameters are."""
    return described_lists(packed.lists, problem)


LAUNCHES = tuned_slabs(KERNEL, VERSION, described)
