"""A float32 product by a kernel that is feature-major, in any layout: operands are brought into its form, and Y out of it."""

from typing import Protocol

import torch
from torch import Tensor

from sparsefront_kernels.common.operands import (
    aligned_by_input,
    aligned_like,
    bias_for_kernel,
    check_epilogue,
    check_operands,
    deliver,
    empty_output,
)


class Launch(Protocol):
    """Writes all of y [N, M] from x [K, M] on x's device, which is current; both have aligned rows, and whole runs of M."""

    def __call__(
        self, x: Tensor, y: Tensor, *, bias: Tensor | None, activation: str, residual: Tensor | None
    ) -> None: ...


def fp32_product(
    launch: Launch,
    x: Tensor,
    panels: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    *,
    n: int,
    k: int,
    activation: str,
    x_feature_major: bool,
    y_feature_major: bool,
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual.

    Args:
        x: float32 [M, K], or [K, M] where x_feature_major, any strides. The kernel reads aligned [K, M]: other layouts,
            an M that is no multiple of 4 and unaligned rows cost a copy of X.
        panels: float32, any of the weight's tensors.
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
        launch(
            by_input,
            target,
            bias=bias_for_kernel(bias),
            activation=activation,
            residual=None if residual is None else aligned_like(target, residual),
        )
        if not direct:
            deliver(target, y, feature_major=y_feature_major)
    return y
