"""Tiles of outputs that keep the same inputs, of which every output keeps two of every four."""

from sparsefront_kernels.gathered_2_4.entries import ENTRIES
from sparsefront_kernels.gathered_2_4.format import Gathered24Format

FORMAT = Gathered24Format

__all__ = ["ENTRIES", "FORMAT"]
