"""Launch parameters of the ELL kernel: searched, and stored by problem."""

from sparsefront_kernels.common.slab_launch import tuned_slabs

KERNEL = "ell_cuda"
VERSION = 1  # raised when a change of the kernel makes old measurements useless

LAUNCHES = tuned_slabs(KERNEL, VERSION)
