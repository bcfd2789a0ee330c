"""Blocks of weights that live or die together and of which every four inputs keep two."""

from torch import Tensor

from sparsefront_kernels.blocked import ENTRIES as BLOCKED_ENTRIES
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked_2_4 import sm90
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry


def blocked_2_4_reference(x: Tensor, stored: Blocked24Format, bias: Tensor | None = None) -> Tensor:
    """As `blocked_reference`, over whole blocks that are rebuilt at every call: correct, not fast."""
    return blocked_reference(x, stored.filled(), bias)


FORMAT = Blocked24Format
ENTRIES = (
    KernelEntry(name="blocked_2_4_reference", family="blocked_2_4", product=blocked_2_4_reference, is_reference=True),
    sm90.ENTRY,
    *(filled_entry(entry, "blocked_2_4") for entry in BLOCKED_ENTRIES if not entry.is_reference),
)

__all__ = ["ENTRIES", "FORMAT"]
