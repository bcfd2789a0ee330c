"""The weight as it is: the twin that every sparse family has to beat."""

from sparsefront_kernels.dense.entries import ENTRIES
from sparsefront_kernels.dense.format import DenseFormat

FORMAT = DenseFormat

__all__ = ["ENTRIES", "FORMAT"]
