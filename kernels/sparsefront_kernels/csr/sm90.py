"""`csr_sm90`: an alternative to cuSPARSE on CUDA cores, in which a thread owns rows of X (csrc/csr_sm90.cu)."""

from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.cuda.thread_per_row import ThreadPerRowWeight, packed_lists, thread_per_row_entry


def pack_for_sm90(stored: CSRFormat) -> ThreadPerRowWeight:
    """Pack the weight, on the format's device.

    Longest lists come first, so that warps of a block have equal work and the longest blocks start first.
    """
    values = stored.values[:, None]
    return packed_lists(stored.rows(), stored.columns.long(), values, shape=stored.shape, by_length=True)


ENTRY = thread_per_row_entry("csr", kernel="csr_sm90", version=3, pack=pack_for_sm90)
