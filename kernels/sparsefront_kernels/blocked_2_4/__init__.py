"""Blocks of weights that live or die together and of which every four inputs keep two."""

from sparsefront_kernels.blocked_2_4.entries import ENTRIES
from sparsefront_kernels.blocked_2_4.format import Blocked24Format

FORMAT = Blocked24Format

__all__ = ["ENTRIES", "FORMAT"]
