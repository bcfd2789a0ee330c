"""Sparse matrix products for PyTorch: storage formats, references and GPU kernels. Needs torch; Triton if present."""

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.formats import FORMATS
from sparsefront_kernels.kernel_entry import KernelEntry, UnsupportedProblem
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.registry import Found, entries, entry, families, find, names, reference

__all__ = [
    "FORMATS",
    "Found",
    "KernelEntry",
    "UnsupportedProblem",
    "Problem",
    "SparseFormat",
    "entries",
    "entry",
    "families",
    "find",
    "names",
    "reference",
]
