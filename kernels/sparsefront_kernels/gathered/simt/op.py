"""The float32 product on Hopper's CUDA cores as a PyTorch op, in any layout."""

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import bias_for_kernel, check_epilogue, check_operands, empty_output
from sparsefront_kernels.gathered.aligned_operands import aligned_by_input, aligned_like, deliver
from sparsefront_kernels.gathered.gradient import register_gradient
from sparsefront_kernels.gathered.simt.packed_weight import dense_weight
from sparsefront_kernels.gathered.simt.spmm import launch_gathered_simt
from sparsefront_kernels.gathered.simt.tuning import LAUNCHES, SimtProblem


@torch.library.custom_op("sparsefront::gathered_simt", mutates_args=())
def gathered_simt(
    x: Tensor,
    panels: Tensor,
    kept: Tensor,
    tiles: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    kept_of_each: int,
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual with the arguments of `SimtPackedWeight`.

    Args:
        x: float32 [M, K], or [K, M] where x_feature_major, any strides. The kernel reads aligned [K, M]: other layouts,
            an M that is no multiple of 4 and unaligned rows cost a copy of X.
        bias: [N], any float dtype, or None.
        residual: of Y's shape and dtype, any strides, or None; unaligned rows cost a copy.
        activation: a name of `common.epilogue.ACTIVATIONS`.
    Returns:
        float32 [M, N], or [N, M] where y_feature_major, contiguous. Row-major Y and an M that is no multiple of 4 cost
        a copy of Y.
    Raises:
        ValueError: operands that do not fit together, or no such activation.
    """
    check_operands(x, panels, bias, k=k, n=n, feature_major=x_feature_major)
    y = empty_output(x, n, x_feature_major, y_feature_major)
    check_epilogue(y, activation, residual)
    if y.numel() == 0:
        return y
    m = x.shape[1 if x_feature_major else 0]
    if residual is not None and not y_feature_major:
        residual = residual.t()
    with torch.cuda.device_of(x):
        by_input = aligned_by_input(x, feature_major=x_feature_major)
        padded_m = by_input.shape[1]
        direct = y_feature_major and padded_m == m
        target = y if direct else x.new_empty(n, padded_m)
        problem = SimtProblem(padded_m, k, n, outputs.shape[1], len(tiles), len(kept))
        launch_gathered_simt(
            by_input,
            target,
            panels=panels,
            kept=kept,
            tiles=tiles,
            outputs=outputs,
            kept_of_each=kept_of_each,
            bias=bias_for_kernel(bias),
            activation=activation,
            residual=None if residual is None else aligned_like(target, residual),
            launch=LAUNCHES.launch_for(problem, x.device),
        )
        if not direct:
            deliver(target, y, feature_major=y_feature_major)
    return y


@gathered_simt.register_fake
def _(
    x, panels, kept, tiles, outputs, bias, residual, kept_of_each, n, k, activation, x_feature_major, y_feature_major
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("gathered_simt", stored=("panels", "kept", "tiles", "outputs"), dense=dense_weight)
