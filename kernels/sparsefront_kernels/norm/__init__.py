"""Layer normalisation of feature-major activations, and the change between layouts: what lies between two products."""

from sparsefront_kernels.norm.op import layer_norm_columns, transposed
from sparsefront_kernels.norm.reference import layer_norm_columns_reference

__all__ = ["layer_norm_columns", "layer_norm_columns_reference", "transposed"]
