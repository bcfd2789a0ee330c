"""Kernels of blocked weights: the references first, then in order of preference."""

from dataclasses import replace

from sparsefront_kernels.blocked import fp8, gathered_tiles, sm90, triton
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.sm90_convolution import CONVOLVING
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.quantized.reference import reference_entry

ENTRIES = (
    KernelEntry("blocked_reference", "blocked", blocked_reference, is_reference=True),
    replace(sm90.ENTRY, convolving=CONVOLVING),  # blocks large enough for a tensor-core instruction
    gathered_tiles.ENTRY,  # smaller blocks
    triton.ENTRY,
    reference_entry("blocked", "fp8"),
    fp8.ENTRY,
)
