"""`csr_sm90`, our own product beside cuSPARSE's: the CSR weight laid out for it, and its entry of the registry."""

from sparsefront_kernels.common.slab_entry import slab_entry
from sparsefront_kernels.common.slab_lists import SlabWeight, slab_lists
from sparsefront_kernels.csr.format import CSRFormat


def pack_for_sm90(stored: CSRFormat) -> SlabWeight:
    """Lay the weight out for the kernel on the format's device.

    Outputs that keep most come first: warps of a block then have equally much to do, and blocks that take longest start first.
    """
    n, k = stored.shape
    lists = slab_lists(stored.rows(), stored.columns.long(), stored.values[:, None], groups=n, k=k, by_length=True)
    return SlabWeight(n, k, lists)


ENTRY = slab_entry("csr", kernel="csr_sm90", version=2, pack=pack_for_sm90)
