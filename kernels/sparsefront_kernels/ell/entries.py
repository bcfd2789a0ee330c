"""Kernels of ELL weights."""

from sparsefront_kernels.ell import sm90, small_m
from sparsefront_kernels.epilogue import rebuilt_product
from sparsefront_kernels.kernel_entry import KernelEntry

ENTRIES = (
    # rebuilt: gathering X for every output would take `count` times the memory of Y
    KernelEntry("ell_reference", "ell", rebuilt_product, is_reference=True),
    small_m.ENTRY,
    sm90.ENTRY,
)
