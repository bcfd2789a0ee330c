"""The Triton op on a packed weight, for the entries in every number format."""

from torch import Tensor

from sparsefront_kernels.gathered.triton.op import gathered_triton
from sparsefront_kernels.gathered.triton.packed_weight import TritonPackedWeight
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR


def triton_product(
    x: Tensor,
    packed: TritonPackedWeight,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
    tf32: bool = False,
) -> Tensor:
    """activation(X · Wᵀ + bias) + residual in a layout of `problem.LAYOUTS`; float32 is multiplied in TF32 where `tf32`."""
    return gathered_triton(
        x,
        packed.values,
        packed.kept_inputs,
        packed.tile_offsets,
        packed.order,
        packed.outputs,
        bias,
        residual,
        packed.n,
        packed.k,
        packed.consecutive,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
        tf32,
    )
