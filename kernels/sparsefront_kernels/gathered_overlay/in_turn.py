"""Tiles plus overlay on Hopper: the overlay's product first, which the tiles' kernel then adds as its residual."""

from typing import Any

from torch import Tensor

from sparsefront_kernels.csr.sm90 import ENTRY as OVERLAY
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda.entries import ENTRY as TILES
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem

# The overlay's kernel writes feature-major: so do the tiles, and a row-major Y is a view of it.
_TILES_LAYOUT = {"row_major": "row_to_feature", "feature_major": "feature_major"}


def _pack(stored: GatheredOverlayFormat) -> tuple[Any, Any]:
    return TILES.pack(stored.tiles), OVERLAY.pack(stored.overlay)


def _product(x: Tensor, packed: tuple[Any, Any], bias: Tensor | None = None, *, layout: str) -> Tensor:
    """x and y in the layout's order; in 16 bits each part is rounded before they are added."""
    tiles, overlay = packed
    rest = OVERLAY.run(x, overlay, layout=layout)
    by_feature = rest if layout == "feature_major" else rest.t()
    y = TILES.run(x, tiles, bias, layout=_TILES_LAYOUT[layout], residual=by_feature)
    return y if layout == "feature_major" else y.t()


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Unsupported where either part is."""
    return TILES.unsupported(stored.tiles, problem) or OVERLAY.unsupported(stored.overlay, problem)


ENTRY = KernelEntry(
    name="gathered_overlay_sm90",
    family="gathered_overlay",
    product=_product,
    pack=_pack,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=tuple(_TILES_LAYOUT),
)
