"""Tiles plus overlay on Hopper: the overlay's product first, which the tiles' kernel then adds as its residual."""

from functools import partial
from typing import Any

from torch import Tensor

from sparsefront_kernels.csr.cuda.entries import ENTRIES as CSR_ENTRIES
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda.entries import ENTRIES as GATHERED_ENTRIES
from sparsefront_kernels.gathered.layout_entry import entry_name
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem

_OVERLAYS = {entry.layout: entry for entry in CSR_ENTRIES}
_TILES = {entry.layout: entry for entry in GATHERED_ENTRIES}
# The overlay's kernel writes feature-major: so do the tiles, and a row-major Y is a view of it.
_TILES_LAYOUT = {"row_major": "row_to_feature", "feature_major": "feature_major"}


def _pack(stored: GatheredOverlayFormat) -> tuple[Any, Any]:
    return _TILES["row_major"].pack(stored.tiles), _OVERLAYS["row_major"].pack(stored.overlay)


def _product(layout: str, x: Tensor, packed: tuple[Any, Any], bias: Tensor | None = None) -> Tensor:
    """x and y in the layout's order; in 16 bits each part is rounded before they are added."""
    tiles, overlay = packed
    rest = _OVERLAYS[layout].run(x, overlay, None)
    by_feature = rest if layout == "feature_major" else rest.t()
    y = _TILES[_TILES_LAYOUT[layout]].run(x, tiles, bias, residual=by_feature)
    return y if layout == "feature_major" else y.t()


def _unsupported(layout: str, stored: SparseFormat, problem: Problem) -> str | None:
    """Unsupported where either part is."""
    tiles = _TILES[_TILES_LAYOUT[layout]].unsupported(stored.tiles, problem)
    return tiles or _OVERLAYS[layout].unsupported(stored.overlay, problem)


ENTRIES = tuple(
    KernelEntry(
        name=entry_name("gathered_overlay_cuda", layout),
        family="gathered_overlay",
        run=partial(_product, layout),
        pack=_pack,
        unsupported=partial(_unsupported, layout),
        requires_cuda=True,
        layout=layout,
    )
    for layout in ("row_major", "feature_major")
)
