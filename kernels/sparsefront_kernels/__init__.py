"""Sparse matrix products for PyTorch: storage formats, references and GPU kernels. Needs torch; Triton if present."""

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry, UnsupportedProblem
from sparsefront_kernels.linear import SparseLinear, sparse_linear
from sparsefront_kernels.packing import FORMATS, mask_structure, pack
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.registry import Found, best_kernel, entries, entry, families, find, labeled, names, reference
from sparsefront_kernels.sparse_layer import SparseLayer
from sparsefront_kernels.stored_product import load_pt2

__all__ = [
    "FORMATS",
    "Found",
    "KernelEntry",
    "UnsupportedProblem",
    "Problem",
    "SparseFormat",
    "SparseLayer",
    "SparseLinear",
    "best_kernel",
    "entries",
    "entry",
    "families",
    "find",
    "labeled",
    "load_pt2",
    "mask_structure",
    "names",
    "pack",
    "reference",
    "sparse_linear",
]
