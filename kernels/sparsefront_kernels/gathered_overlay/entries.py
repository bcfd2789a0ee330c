"""The kernels of tiles plus overlay: the reference, and the two parts' own GPU kernels one after the other.

Why two passes: README.md.
"""

from typing import Any

from torch import Tensor

from sparsefront_kernels.csr.entries import ENTRIES as CSR_ENTRIES
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.entries import ENTRIES as GATHERED_ENTRIES
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat
from sparsefront_kernels.gathered_overlay.in_turn import ENTRIES as CUDA_ENTRIES
from sparsefront_kernels.gathered_overlay.reference import gathered_overlay_reference
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem

_TILES = next(entry for entry in GATHERED_ENTRIES if entry.name == "gathered_triton")
_OVERLAY = next(entry for entry in CSR_ENTRIES if entry.name == "csr_torch")


def _pack(stored: GatheredOverlayFormat) -> tuple[Any, Any]:
    return _TILES.pack(stored.tiles), _OVERLAY.pack(stored.overlay)


def _both(x: Tensor, packed: tuple[Any, Any], bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]; in 16 bits each part is rounded before they are added."""
    tiles, overlay = packed
    return _TILES.run(x, tiles, bias) + _OVERLAY.run(x, overlay, None)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Unsupported where either part is."""
    return _TILES.unsupported(stored.tiles, problem) or _OVERLAY.unsupported(stored.overlay, problem)


ENTRIES = (
    KernelEntry(
        name="gathered_overlay_reference",
        family="gathered_overlay",
        run=gathered_overlay_reference,
        is_reference=True,
    ),
    *CUDA_ENTRIES,
    KernelEntry(
        name="gathered_overlay_triton",
        family="gathered_overlay",
        run=_both,
        pack=_pack,
        unsupported=_unsupported,
        requires_cuda=True,
    ),
)
