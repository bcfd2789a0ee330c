"""The gathered product as a PyTorch op, so that it lives in compiled graphs and CUDA graphs."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import aligned_by_input, check_epilogue, check_operands, empty_output
from sparsefront_kernels.gathered.gradient import register_gradient
from sparsefront_kernels.gathered.triton.packed_weight import dense_weight
from sparsefront_kernels.gathered.triton.tf32_tuning import LAUNCHES, Tf32Problem

# Rows of X from which a row-major X is transposed first: gathering single elements then takes longer, on an H200 1.5 times at
# 16 rows x 1024 inputs and 3 times at 256 x 4096 (half of them kept), and with a single row about as long.
TRANSPOSED_FROM = 16


@torch.library.custom_op("sparsefront::gathered_triton", mutates_args=())
def gathered_triton(
    x: Tensor,
    values: Tensor,
    kept_inputs: Tensor,
    tile_offsets: Tensor,
    order: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    n: int,
    k: int,
    consecutive: bool,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
    tf32: bool = False,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual with the arguments of `TritonPackedWeight`.

    Args:
        x: [M, K], or [K, M] where x_feature_major; float16, bfloat16 or float32 as `values`, any strides. From
            `TRANSPOSED_FROM` rows on, row-major X costs a copy.
        bias: [N], any float dtype, or None.
        residual: of Y's shape and dtype, any strides, or None.
        activation: a name of `common.epilogue.ACTIVATIONS`.
        tf32: True rounds float32 operands to TF32 before they are multiplied.
    Returns:
        [M, N], or [N, M] where y_feature_major, contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together, or no such activation.
    """
    check_operands(x, values, bias, k=k, n=n, feature_major=x_feature_major)
    y = empty_output(x, n, x_feature_major, y_feature_major)
    check_epilogue(y, activation, residual)
    if y.numel() == 0:
        return y
    # imported late: Triton may be absent where only references run
    from sparsefront_kernels.gathered.triton.spmm import launch_gathered_triton

    launch = None
    if tf32:
        tiles, tile = outputs.shape
        problem = Tf32Problem(x.shape[1 if x_feature_major else 0], k, n, tile, tiles, len(kept_inputs))
        launch = LAUNCHES.launch_for(problem, x.device)
    with torch.cuda.device_of(x):
        launch_gathered_triton(
            x.t() if x_feature_major else _as_runs(x),
            y.t() if y_feature_major else y,
            values=values,
            kept_inputs=kept_inputs,
            tile_offsets=tile_offsets,
            order=order,
            outputs=outputs,
            bias=bias,
            residual=residual.t() if residual is not None and y_feature_major else residual,
            activation=activation,
            consecutive=consecutive,
            tf32=launch,
        )
    return y


@gathered_triton.register_fake
def _(
    x,
    values,
    kept_inputs,
    tile_offsets,
    order,
    outputs,
    bias,
    residual,
    n,
    k,
    consecutive,
    activation,
    x_feature_major,
    y_feature_major,
    tf32=False,
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("gathered_triton", stored=("values", "kept_inputs", "tile_offsets", "outputs"), dense=dense_weight)


def _as_runs(x: Tensor) -> Tensor:
    """X [M, K] with the elements of an input side by side, unless there are so few that this costs more than it saves."""
    m = x.shape[0]
    return x if m < TRANSPOSED_FROM else aligned_by_input(x, feature_major=False)[:, :m].t()
