"""Launch parameters of the CSR kernel: searched, and stored by problem."""

from sparsefront_kernels.common.slab_launch import tuned_slabs

KERNEL = "csr_cuda"
VERSION = 1  # raised when a change of the kernel makes old measurements useless

LAUNCHES = tuned_slabs(KERNEL, VERSION)
