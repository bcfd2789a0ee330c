"""Tiles with shared inputs, and single weights beside them: tile-wise sparsity with an element overlay (TEW)."""

from sparsefront_kernels.gathered_overlay.composed import COMPOSED, REFERENCE
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat

FORMAT = GatheredOverlayFormat
ENTRIES = (REFERENCE, COMPOSED)

__all__ = ["ENTRIES", "FORMAT"]
