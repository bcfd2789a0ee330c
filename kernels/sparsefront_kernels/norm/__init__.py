"""Normalization of activations: LayerNorm of feature-major columns, LayerNorm and RMSNorm of rows."""

from sparsefront_kernels.norm.layer_norm import add_layer_norm_columns, layer_norm_columns
from sparsefront_kernels.norm.reference import add_layer_norm_columns_reference, layer_norm_columns_reference
from sparsefront_kernels.norm.rows import norm_rows, norm_rows_reference

__all__ = [
    "add_layer_norm_columns",
    "add_layer_norm_columns_reference",
    "layer_norm_columns",
    "layer_norm_columns_reference",
    "norm_rows",
    "norm_rows_reference",
]
