"""2:4, the one pattern that tensor cores skip by themselves."""

from sparsefront_kernels.semi_structured.entries import ENTRIES
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat

FORMAT = SemiStructuredFormat

__all__ = ["ENTRIES", "FORMAT"]
