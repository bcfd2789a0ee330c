"""Blocks of weights that live or die together (BSR)."""

from dataclasses import replace

from sparsefront_kernels.blocked import gathered_tiles, sm90, triton
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.sm90_convolution import CONVOLVING
from sparsefront_kernels.kernel_entry import KernelEntry

FORMAT = BlockedFormat
ENTRIES = (
    KernelEntry(name="blocked_reference", family="blocked", product=blocked_reference, is_reference=True),
    replace(sm90.ENTRY, convolving=CONVOLVING),  # blocks that fill a tensor-core instruction
    gathered_tiles.ENTRY,  # smaller ones
    triton.ENTRY,
)

__all__ = ["ENTRIES", "FORMAT"]
