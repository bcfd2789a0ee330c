"""Kernels of tiles with an overlay: both parts' products, added.

`gathered_overlay_composed` computes the overlay's product with a CSR kernel, which the tiles' kernel then adds as its residual:
`csr_sm90` and `gathered_sm90` on compute capability 9.0 if they support the tiles, else `csr_torch` and `gathered_triton`.
README.md says why there are two passes.
"""

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

# The overlay's kernels write feature-major; so do the tiles, and a row-major Y is a view.
_TILES_LAYOUT = {"row_major": "row_to_feature", "feature_major": "feature_major"}


def gathered_overlay_reference(x: Tensor, stored: GatheredOverlayFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias: both parts' references, added in float32 for 16-bit x and rounded once."""
    upcast = x.to(accumulation_dtype(x.dtype))
    return (gathered_reference(upcast, stored.tiles, bias) + csr_reference(upcast, stored.overlay)).to(x.dtype)


def kernels_for(stored: GatheredOverlayFormat, dtype: torch.dtype, device: torch.device) -> tuple[KernelEntry, ...]:
    """The kernels of the tiles and of the overlay."""
    hopper, problem = (GATHERED_SM90, CSR_SM90), Problem(1, *reversed(stored.shape), dtype, device)
    return (GATHERED_TRITON, CSR_TORCH) if _unsupported_by(hopper, stored, problem) else hopper


def _unsupported_by(kernels: tuple[KernelEntry, ...], stored: GatheredOverlayFormat, problem: Problem) -> str | None:
    tiles, overlay = kernels
    return tiles.unsupported(stored.tiles, problem) or overlay.unsupported(stored.overlay, problem)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    weight = cast(GatheredOverlayFormat, stored)
    return _unsupported_by(kernels_for(weight, problem.dtype, problem.device), weight, problem)


def pack_for_composed(stored: GatheredOverlayFormat) -> tuple[tuple[KernelEntry, Any], ...]:
    """The kernels of the GPU that holds the weight, each with its part as the kernel packed it: tiles, then the overlay."""
    kernels = kernels_for(stored, stored.dtype, stored.device)
    return tuple((kernel, kernel.pack(part)) for kernel, part in zip(kernels, (stored.tiles, stored.overlay)))


def gathered_overlay_composed(
    x: Tensor, packed: tuple[tuple[KernelEntry, Any], ...], bias: Tensor | None = None, *, layout: str
) -> Tensor:
    """Y = X · Wᵀ + bias with x and y in the layout's order; in 16 bits the overlay's product is rounded before it is added."""
    (tiles, tiles_weight), (overlay, overlay_weight) = packed
    by_feature = layout == "feature_major"
    if layout in overlay.layouts:
        added = overlay.run(x, overlay_weight, layout=layout)
        added = added if by_feature else added.t()
    else:  # feature-major by a kernel that takes rows in any strides
        added = overlay.run(x.t(), overlay_weight).t()
    y = tiles.run(x, tiles_weight, bias, layout=_TILES_LAYOUT[layout], residual=added)
    return y if by_feature else y.t()


ENTRIES = (
    KernelEntry("gathered_overlay_reference", "gathered_overlay", gathered_overlay_reference, is_reference=True),
    KernelEntry(
        "gathered_overlay_composed",
        "gathered_overlay",
        gathered_overlay_composed,
        pack=pack_for_composed,
        unsupported=_unsupported,
        requires_cuda=True,
        layouts=tuple(_TILES_LAYOUT),
    ),
)
