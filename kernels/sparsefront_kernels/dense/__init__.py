"""All weights: the dense baseline that sparse families have to beat."""

from sparsefront_kernels.dense.format import DenseFormat, dense_linear
from sparsefront_kernels.kernel_entry import KernelEntry

FORMAT = DenseFormat
ENTRIES = (KernelEntry(name="dense_linear", family="dense", product=dense_linear, is_reference=True),)

__all__ = ["ENTRIES", "FORMAT"]
