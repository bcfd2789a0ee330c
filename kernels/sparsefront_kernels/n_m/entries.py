"""Kernels of n:m weights: the reference first, then in order of preference."""

from sparsefront_kernels.epilogue import rebuilt_product
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m import mma, rebuilt, sm90, small_m

ENTRIES = (
    # rebuilt: each output keeps its own inputs, so that no PyTorch product can skip the others
    KernelEntry("n_m_reference", "n_m", rebuilt_product, is_reference=True),
    mma.ENTRY,
    small_m.ENTRY,
    rebuilt.ENTRY,
    sm90.ENTRY,
)
