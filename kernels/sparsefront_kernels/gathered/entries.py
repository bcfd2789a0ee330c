"""Kernels of gathered weights: the reference first, then in order of preference."""

from sparsefront_kernels.gathered import indexed, quack, simt, sm90, small_m, triton
from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.quantized.few_rows import few_rows_entry
from sparsefront_kernels.quantized.reference import reference_entry

ENTRIES = (
    KernelEntry("gathered_reference", "gathered", gathered_reference, is_reference=True, fuses_epilogue=True),
    triton.ENTRY,
    sm90.ENTRY,
    simt.ENTRY,
    indexed.ENTRY,
    small_m.ENTRY,
    triton.TF32_ENTRY,
    quack.ENTRY,
    reference_entry("gathered", "int8"),
    few_rows_entry("gathered"),
)
