"""The same number of kept weights or small blocks in every row: uniform sparsity."""

from sparsefront_kernels.ell.entries import ENTRIES
from sparsefront_kernels.ell.format import ELLFormat

FORMAT = ELLFormat

__all__ = ["ENTRIES", "FORMAT"]
