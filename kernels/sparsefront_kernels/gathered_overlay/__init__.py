"""Tiles with shared inputs, and single weights beside them: tile-wise sparsity with an element overlay (TEW)."""

from sparsefront_kernels.gathered_overlay.composed import ENTRY as COMPOSED
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat
from sparsefront_kernels.gathered_overlay.reference import gathered_overlay_reference
from sparsefront_kernels.kernel_entry import KernelEntry

FORMAT = GatheredOverlayFormat
ENTRIES = (
    KernelEntry(
        name="gathered_overlay_reference",
        family="gathered_overlay",
        product=gathered_overlay_reference,
        is_reference=True,
    ),
    COMPOSED,
)

__all__ = ["ENTRIES", "FORMAT"]
