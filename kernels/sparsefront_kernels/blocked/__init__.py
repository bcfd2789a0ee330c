"""Blocks of weights that live or die together (BSR)."""

from sparsefront_kernels.blocked.entries import ENTRIES
from sparsefront_kernels.blocked.format import BlockedFormat

FORMAT = BlockedFormat

__all__ = ["ENTRIES", "FORMAT"]
