"""Weights kept one by one (compressed sparse rows)."""

from sparsefront_kernels.csr.entries import ENTRIES
from sparsefront_kernels.csr.format import CSRFormat

FORMAT = CSRFormat

__all__ = ["ENTRIES", "FORMAT"]
