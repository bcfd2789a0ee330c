"""Layer normalisation of feature-major activations."""

from sparsefront_kernels.norm.layer_norm import add_layer_norm_columns, layer_norm_columns
from sparsefront_kernels.norm.reference import add_layer_norm_columns_reference, layer_norm_columns_reference

__all__ = [
    "add_layer_norm_columns",
    "add_layer_norm_columns_reference",
    "layer_norm_columns",
    "layer_norm_columns_reference",
]
