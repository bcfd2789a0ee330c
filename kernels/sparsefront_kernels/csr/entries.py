"""Kernels of CSR weights."""

from sparsefront_kernels.csr import sm90, torch_spmm

ENTRIES = (torch_spmm.REFERENCE, torch_spmm.TORCH, sm90.ENTRY)
