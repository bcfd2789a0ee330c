"""The CSR weight laid out for our kernel: lists of each output, the longest first."""

from dataclasses import dataclass

from sparsefront_kernels.common.slab_lists import SlabLists, slab_lists
from sparsefront_kernels.csr.format import CSRFormat


@dataclass(frozen=True, eq=False)
class CSRCudaPackedWeight:
    """What the kernel reads.

    Args:
        n, k: outputs and inputs of the weight.
        lists: of the outputs, those that keep most first: warps of a block then have equally much to do, and blocks that take
            longest start first.
    """

    n: int
    k: int
    lists: SlabLists


def pack_for_cuda(stored: CSRFormat) -> CSRCudaPackedWeight:
    """Lay the weight out for the kernel on the format's device."""
    n, k = stored.shape
    lists = slab_lists(stored.rows(), stored.columns.long(), stored.values[:, None], groups=n, k=k, by_length=True)
    return CSRCudaPackedWeight(n, k, lists)
