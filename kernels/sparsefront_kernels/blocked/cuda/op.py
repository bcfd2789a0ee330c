"""The blocked product on Hopper's tensor cores as a PyTorch op, in any layout."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront_kernels.blocked.cuda.packed_weight import K_BLOCK, dense_weight
from sparsefront_kernels.blocked.cuda.spmm import launch_blocked_sm90
from sparsefront_kernels.blocked.cuda.tuning import BlockedProblem, launches_of
from sparsefront_kernels.common.operands import (
    aligned_by_input,
    bias_for_kernel,
    check_epilogue,
    check_operands,
    empty_output,
    has_aligned_rows,
    run_length,
)
from sparsefront_kernels.common.wgmma_layout import is_halved
from sparsefront_kernels.gathered.gradient import register_gradient


@torch.library.custom_op("sparsefront::blocked_sm90", mutates_args=())
def blocked_sm90(
    x: Tensor,
    panels: Tensor,
    k_blocks: Tensor,
    outputs: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    lengths: Sequence[int],
    box: int,
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual with the arguments of `BlockedCudaWeight`.

    Args:
        x: [M, K], or [K, M] where x_feature_major; float16 or bfloat16 as `panels`, any strides: where neither rows
            nor columns are contiguous and begin at 16 bytes, X is copied.
        bias: [N], any float dtype, or None.
        residual: of Y's shape and dtype, any strides, or None; unaligned rows cost a copy.
        activation: a name of `common.epilogue.ACTIVATIONS`.
    Returns:
        [M, N], or [N, M] where y_feature_major, contiguous, in x's dtype; added up in float32. Feature-major, an M that is no
        multiple of 8 costs a copy of Y.
    Raises:
        ValueError: operands that do not fit together, or no such activation.
    """
    check_operands(x, panels, bias, k=k, n=n, feature_major=x_feature_major)
    y = empty_output(x, n, x_feature_major, y_feature_major)
    check_epilogue(y, activation, residual)
    if y.numel() == 0:
        return y
    m = x.shape[1 if x_feature_major else 0]
    with torch.cuda.device_of(x):
        operand, by_input = _x_operand(x, feature_major=x_feature_major, box=box)
        target = y if m % run_length(x.dtype) == 0 or not y_feature_major else _padded(y)
        problem = BlockedProblem(m, k, n, box, len(outputs), len(panels), tuple(lengths), is_halved(panels))
        launch_blocked_sm90(
            operand,
            target,
            panels=panels,
            k_blocks=k_blocks,
            outputs=outputs,
            lengths=lengths,
            box=box,
            m=m,
            n=n,
            k=k,
            launch=launches_of(problem).launch_for(problem, x.device),
            x_feature_major=by_input,
            y_feature_major=y_feature_major,
            bias=bias_for_kernel(bias),
            activation=activation,
            residual=None if residual is None else residual_operand(target, residual),
        )
        if target is not y:
            y.copy_(target[:, :m])
    return y


def _x_operand(x: Tensor, *, feature_major: bool, box: int) -> tuple[Tensor, bool]:
    """X as the kernel reads it, and whether its rows are inputs.

    X lies by rows or by inputs, whatever its layout says: a transposed view costs nothing.
    """
    by_row, by_input = (x.t(), x) if feature_major else (x, x.t())
    if _is_loadable(by_row):
        return by_row, False
    if box == K_BLOCK and _is_loadable(by_input):
        return by_input, True
    if box == K_BLOCK and feature_major:
        return aligned_by_input(by_input.contiguous(), feature_major=True), True
    return by_row.new_empty(by_row.shape).copy_(by_row), False  # a clone of one row may keep any stride


def _is_loadable(matrix: Tensor) -> bool:
    """Whether the copy engine reads it: rows that are contiguous, do not overlap and begin at 16 bytes each."""
    return has_aligned_rows(matrix) and matrix.stride(0) >= matrix.shape[1]


def residual_operand(target: Tensor, residual: Tensor) -> Tensor:
    """The residual as the kernel reads it beside the memory that it writes."""
    if _is_loadable(residual) and residual.shape == target.shape:
        return residual
    copy = torch.empty_like(target)
    copy[:, : residual.shape[1]].copy_(residual)
    return copy


def _padded(y: Tensor) -> Tensor:
    """Memory for [N, M] whose rows begin at 16 bytes."""
    run = run_length(y.dtype)
    return y.new_empty(y.shape[0], -(-y.shape[1] // run) * run)


@blocked_sm90.register_fake
def _(
    x,
    panels,
    k_blocks,
    outputs,
    bias,
    residual,
    lengths,
    box,
    n,
    k,
    activation,
    x_feature_major,
    y_feature_major,
):
    return empty_output(x, n, x_feature_major, y_feature_major)


register_gradient("blocked_sm90", stored=("panels", "k_blocks", "outputs"), dense=dense_weight, numbers=("lengths",))
