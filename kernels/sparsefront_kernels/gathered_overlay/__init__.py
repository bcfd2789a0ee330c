"""Tiles with shared inputs, and single weights beside them: tile-wise sparsity with an element overlay (TEW)."""

from sparsefront_kernels.gathered_overlay.entries import ENTRIES
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat

FORMAT = GatheredOverlayFormat

__all__ = ["ENTRIES", "FORMAT"]
