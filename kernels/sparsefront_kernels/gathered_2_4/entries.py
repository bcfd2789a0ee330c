"""Kernels of tiles with two of every four inputs: their own, and those of whole tiles on rebuilt ones."""

from sparsefront_kernels.gathered import sm90, small_m, triton
from sparsefront_kernels.gathered_2_4 import sm90 as halved
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry

FAMILY = "gathered_2_4"
ENTRIES = (
    KernelEntry(f"{FAMILY}_reference", FAMILY, halved.gathered_2_4_reference, is_reference=True, fuses_epilogue=True),
    halved.ENTRY,
    *(filled_entry(kernel, FAMILY) for kernel in (sm90.ENTRY, small_m.ENTRY, triton.ENTRY)),
)
