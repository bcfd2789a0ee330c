"""The kernels of the ELL family."""

from sparsefront_kernels.ell.cuda import ENTRY as CUDA
from sparsefront_kernels.ell.reference import ell_reference
from sparsefront_kernels.ell.small_m.entries import ENTRY as SMALL_M
from sparsefront_kernels.kernel_entry import KernelEntry

ENTRIES = (KernelEntry(name="ell_reference", family="ell", product=ell_reference, is_reference=True), SMALL_M, CUDA)
