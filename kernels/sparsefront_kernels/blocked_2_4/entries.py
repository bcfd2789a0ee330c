"""Kernels of blocks with two of every four inputs: their own, and those of whole blocks on rebuilt ones."""

from sparsefront_kernels.blocked.entries import ENTRIES as BLOCKED
from sparsefront_kernels.blocked_2_4 import sm90
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry

ENTRIES = (
    KernelEntry("blocked_2_4_reference", "blocked_2_4", sm90.blocked_2_4_reference, is_reference=True),
    sm90.ENTRY,
    *(filled_entry(kernel, "blocked_2_4") for kernel in BLOCKED if kernel.requires_cuda and kernel.precision == "none"),
)
