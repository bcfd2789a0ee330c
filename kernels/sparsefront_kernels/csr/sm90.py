"""`csr_sm90`: our own product next to cuSPARSE's, on CUDA cores; a thread owns rows of X (csrc/csr_sm90.cu)."""

from sparsefront_kernels.common.thread_per_row import ThreadPerRowWeight, packed_lists, thread_per_row_entry
from sparsefront_kernels.csr.format import CSRFormat


def pack_for_sm90(stored: CSRFormat) -> ThreadPerRowWeight:
    """Lay the weight out for the kernel on the format's device.

    Outputs that keep most come first: warps of a block then have equally much to do, and blocks that take longest start first.
    """
    values = stored.values[:, None]
    return packed_lists(stored.rows(), stored.columns.long(), values, shape=stored.shape, by_length=True)


ENTRY = thread_per_row_entry("csr", kernel="csr_sm90", version=3, pack=pack_for_sm90)
