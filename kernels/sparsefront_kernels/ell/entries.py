"""The kernels of the ELL family: the reference alone, so far. There is no GPU kernel yet that uses the equal rows."""

from sparsefront_kernels.ell.reference import ell_reference
from sparsefront_kernels.kernel_entry import KernelEntry

ENTRIES = (KernelEntry(name="ell_reference", family="ell", run=ell_reference, is_reference=True),)
