"""The kernels of the dense family."""

from sparsefront_kernels.dense.reference import dense_linear
from sparsefront_kernels.kernel_entry import KernelEntry

ENTRIES = (KernelEntry(name="dense_linear", family="dense", product=dense_linear, is_reference=True),)
