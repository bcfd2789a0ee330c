"""The gathered product as a PyTorch op, so that it lives in compiled graphs and CUDA graphs."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import check_operands


@torch.library.custom_op("sparsefront::gathered_spmm", mutates_args=())
def gathered_spmm(
    x: Tensor,
    values: Tensor,
    kept_inputs: Tensor,
    tile_offsets: Tensor,
    order: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    n: int,
    k: int,
    consecutive: bool,
    feature_major: bool,
) -> Tensor:
    """Y = X · Wᵀ + bias with the arguments of `GatheredTables`.

    Args:
        x: [M, K], or [K, M] where feature_major; float16, bfloat16 or float32 as `values`, any strides.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], or [N, M] where feature_major, contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together.
    """
    check_operands(x, values, bias, k=k, n=n, feature_major=feature_major)
    y = _empty_output(x, n, feature_major)
    if y.numel() == 0:
        return y
    # Triton may be absent where only the reference is used, so it is imported by those who need it
    from sparsefront_kernels.gathered.triton_spmm import launch_gathered_spmm

    with torch.cuda.device_of(x):
        launch_gathered_spmm(
            x.t() if feature_major else x,
            y.t() if feature_major else y,
            values=values,
            kept_inputs=kept_inputs,
            tile_offsets=tile_offsets,
            order=order,
            outputs=outputs,
            bias=bias,
            consecutive=consecutive,
        )
    return y


@gathered_spmm.register_fake
def _(x, values, kept_inputs, tile_offsets, order, outputs, bias, n, k, consecutive, feature_major):
    return _empty_output(x, n, feature_major)


def _empty_output(x: Tensor, n: int, feature_major: bool) -> Tensor:
    return x.new_empty((n, x.shape[1]) if feature_major else (x.shape[0], n))
