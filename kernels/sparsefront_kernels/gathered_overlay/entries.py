"""The kernels of tiles plus overlay: the reference, and the two parts' own GPU kernels one after the other.

Why two passes: README.md.
"""

from typing import Any

from torch import Tensor

from sparsefront_kernels.csr.torch_spmm import TORCH as OVERLAY
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.triton.entries import ENTRY as TILES
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat
from sparsefront_kernels.gathered_overlay.in_turn import ENTRY as CUDA
from sparsefront_kernels.gathered_overlay.reference import gathered_overlay_reference
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem


def _pack(stored: GatheredOverlayFormat) -> tuple[Any, Any]:
    return TILES.pack(stored.tiles), OVERLAY.pack(stored.overlay)


def _both(x: Tensor, packed: tuple[Any, Any], bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]; in 16 bits each part is rounded before they are added."""
    tiles, overlay = packed
    return TILES.run(x, tiles, bias) + OVERLAY.run(x, overlay)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Unsupported where either part is."""
    return TILES.unsupported(stored.tiles, problem) or OVERLAY.unsupported(stored.overlay, problem)


ENTRIES = (
    KernelEntry(
        name="gathered_overlay_reference",
        family="gathered_overlay",
        product=gathered_overlay_reference,
        is_reference=True,
    ),
    CUDA,
    KernelEntry(
        name="gathered_overlay_triton",
        family="gathered_overlay",
        product=_both,
        pack=_pack,
        unsupported=_unsupported,
        requires_cuda=True,
    ),
)
