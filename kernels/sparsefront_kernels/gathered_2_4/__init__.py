"""Tiles of outputs that keep the same inputs, of which every output keeps two of every four.

Sparse products run on compute capability 9.0; elsewhere kernels of the gathered family run on dense panels.
"""

from torch import Tensor

from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered.sm90 import ENTRY as GATHERED_SM90
from sparsefront_kernels.gathered.small_m import ENTRY as GATHERED_SMALL_M
from sparsefront_kernels.gathered.triton import ENTRY as GATHERED_TRITON
from sparsefront_kernels.gathered_2_4.format import Gathered24Format
from sparsefront_kernels.gathered_2_4.sm90 import ENTRY as SM90
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry


def _reference(
    x: Tensor,
    stored: Gathered24Format,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """As `gathered_reference`, over dense panels that are rebuilt at every call: correct, not fast."""
    return gathered_reference(x, stored.filled(), bias, activation=activation, residual=residual)


FORMAT = Gathered24Format
ENTRIES = (
    KernelEntry(
        name="gathered_2_4_reference",
        family="gathered_2_4",
        product=_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    SM90,
    *(filled_entry(entry, "gathered_2_4") for entry in (GATHERED_SM90, GATHERED_SMALL_M, GATHERED_TRITON)),
)

__all__ = ["ENTRIES", "FORMAT"]
