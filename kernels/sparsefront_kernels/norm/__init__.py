"""Layer normalisation of feature-major activations."""

from sparsefront_kernels.norm.op import layer_norm_columns
from sparsefront_kernels.norm.reference import layer_norm_columns_reference

__all__ = ["layer_norm_columns", "layer_norm_columns_reference"]
