"""Tiles of outputs that share a list of kept inputs: tile-wise and vector-wise sparsity."""

from sparsefront_kernels.gathered.entries import ENTRIES
from sparsefront_kernels.gathered.format import GatheredFormat

FORMAT = GatheredFormat

__all__ = ["ENTRIES", "FORMAT"]
