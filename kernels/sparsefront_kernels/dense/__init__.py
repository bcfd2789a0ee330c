"""All weights: the dense baseline that sparse families have to beat."""

from sparsefront_kernels.dense.entries import ENTRIES
from sparsefront_kernels.dense.format import DenseFormat

FORMAT = DenseFormat

__all__ = ["ENTRIES", "FORMAT"]
