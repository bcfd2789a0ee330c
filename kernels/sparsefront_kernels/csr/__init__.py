"""Weights kept one by one (compressed sparse rows)."""

from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.csr.sm90 import ENTRY as SM90
from sparsefront_kernels.csr.torch_spmm import REFERENCE, TORCH

FORMAT = CSRFormat
ENTRIES = (REFERENCE, TORCH, SM90)

__all__ = ["ENTRIES", "FORMAT"]
