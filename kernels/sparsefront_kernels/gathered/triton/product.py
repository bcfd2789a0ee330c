"""The Triton op on the tables of a weight, for the entries in every number format."""

from torch import Tensor

from sparsefront_kernels.gathered.triton.op import gathered_spmm
from sparsefront_kernels.gathered.triton.tables import GatheredTables
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR


def triton_product(
    x: Tensor,
    tables: GatheredTables,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
    tf32: bool = False,
) -> Tensor:
    """activation(X · Wᵀ + bias) + residual in a layout of `problem.LAYOUTS`; float32 is multiplied in TF32 where `tf32`."""
    return gathered_spmm(
        x,
        tables.values,
        tables.kept_inputs,
        tables.tile_offsets,
        tables.order,
        tables.outputs,
        bias,
        residual,
        tables.n,
        tables.k,
        tables.consecutive,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
        tf32,
    )
