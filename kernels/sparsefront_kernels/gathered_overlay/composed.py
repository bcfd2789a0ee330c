"""Both parts' products added: by their references, and by their GPU kernels (`gathered_overlay_composed`).

There a CSR kernel computes the overlay's product first, which the tiles' kernel then adds as its residual. On compute
capability 9.0 these are `csr_sm90` and `gathered_sm90` where they support the tiles, elsewhere `csr_torch` and
`gathered_triton`. Why two passes: README.md.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from sparsefront_kernels.csr.sm90 import ENTRY as CSR_SM90
from sparsefront_kernels.csr.torch_spmm import TORCH as CSR_TORCH
from sparsefront_kernels.csr.torch_spmm import csr_reference
from sparsefront_kernels.epilogue import accumulation_dtype
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered.sm90 import ENTRY as GATHERED_SM90
from sparsefront_kernels.gathered.triton import ENTRY as GATHERED_TRITON
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem

# The overlay's kernels write feature-major: so do the tiles, and a row-major Y is a view of it.
_TILES_LAYOUT = {"row_major": "row_to_feature", "feature_major": "feature_major"}


def gathered_overlay_reference(x: Tensor, stored: GatheredOverlayFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias, the sum of the two parts' references.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are added up in float32, over both parts, and rounded once.
        stored: the weight, on x's device.
        bias: [N] or None.
    Returns:
        [M, N] in x's dtype.
    """
    wide = x.to(accumulation_dtype(x.dtype))
    y = gathered_reference(wide, stored.tiles, bias) + csr_reference(wide, stored.overlay)
    return y.to(x.dtype)


def kernels_for(
    stored: GatheredOverlayFormat, dtype: torch.dtype, device: torch.device
) -> tuple[KernelEntry, KernelEntry]:
    """Of the tiles and of the overlay: those for compute capability 9.0 where they take the weight, else those for any GPU."""
    hopper, problem = (GATHERED_SM90, CSR_SM90), Problem(1, *reversed(stored.shape), dtype, device)
    return (GATHERED_TRITON, CSR_TORCH) if _unsupported_by(hopper, stored, problem) else hopper


def _unsupported_by(
    kernels: tuple[KernelEntry, KernelEntry], stored: GatheredOverlayFormat, problem: Problem
) -> str | None:
    tiles, overlay = kernels
    return tiles.unsupported(stored.tiles, problem) or overlay.unsupported(stored.overlay, problem)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    weight = cast(GatheredOverlayFormat, stored)
    return _unsupported_by(kernels_for(weight, problem.dtype, problem.device), weight, problem)


@dataclass(frozen=True, eq=False)
class ComposedWeight:
    """Both parts' kernels, and the parts as these packed them."""

    kernels: tuple[KernelEntry, KernelEntry]
    tiles: Any
    overlay: Any


def pack_for_composed(stored: GatheredOverlayFormat) -> ComposedWeight:
    """Pack both parts for the kernels of the GPU that holds the weight."""
    tiles, overlay = kernels_for(stored, stored.dtype, stored.device)
    return ComposedWeight((tiles, overlay), tiles.pack(stored.tiles), overlay.pack(stored.overlay))


def gathered_overlay_composed(x: Tensor, packed: ComposedWeight, bias: Tensor | None = None, *, layout: str) -> Tensor:
    """Y = X · Wᵀ + bias with x and y in the layout's order; in 16 bits the overlay's product is rounded before it is added."""
    tiles, overlay = packed.kernels
    by_feature = layout == "feature_major"
    if layout in overlay.layouts:
        rest = overlay.run(x, packed.overlay, layout=layout)
    else:  # feature-major by the kernel that takes rows in any strides
        rest = overlay.run(x.t(), packed.overlay).t()
    rest = rest if by_feature else rest.t()
    y = tiles.run(x, packed.tiles, bias, layout=_TILES_LAYOUT[layout], residual=rest)
    return y if by_feature else y.t()


REFERENCE = KernelEntry(
    name="gathered_overlay_reference",
    family="gathered_overlay",
    product=gathered_overlay_reference,
    is_reference=True,
)
COMPOSED = KernelEntry(
    name="gathered_overlay_composed",
    family="gathered_overlay",
    product=gathered_overlay_composed,
    pack=pack_for_composed,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=tuple(_TILES_LAYOUT),
)
