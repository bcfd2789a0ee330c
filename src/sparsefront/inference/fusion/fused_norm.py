"""LayerNorm inside a feature-major residual stream."""

from typing import Any

import torch
from sparsefront_kernels.norm import (
    add_layer_norm_columns,
    add_layer_norm_columns_reference,
    layer_norm_columns,
    layer_norm_columns_reference,
)
from torch import Tensor, nn


class FusedNorm(nn.Module):
    """LayerNorm over the last dimension of [..., d], read by strides, written feature-major."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = _constant(weight), _constant(bias)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        run = layer_norm_columns_reference if _is_plain(x) else layer_norm_columns
        return run(_columns(x), self.weight, self.bias, self.eps).t().view(x.shape)

    def kernel_operands(self, x: Tensor) -> dict[str, Any] | None:
        """What `norm.kernels` is asked about for this call; None where plain PyTorch runs it."""
        if _is_plain(x):
            return None
        vectors = {"weight": self.weight, "bias": self.bias, "x_bias": None}
        return {"x": _columns(x), **vectors, "residual": None, "sums": None}

    def extra_repr(self) -> str:
        return f"eps={self.eps}, feature_major"


class FusedResidualNorm(FusedNorm):
    """LayerNorm of x + x_bias + residual: what a product and the residual stream give, added up where it is read.

    Args:
        x_bias: [d], of the product; or None.
        keep_sums: whether others read the sum as well.
    """

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, eps: float, *, x_bias: Tensor | None, keep_sums: bool
    ) -> None:
        super().__init__(weight, bias, eps)
        self.x_bias, self.keep_sums = _constant(x_bias), keep_sums

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm, and the sum, which means nothing without keep_sums."""
        operands = _columns(x), self.x_bias, _columns(residual.to(x.dtype)), self.weight, self.bias, self.eps
        if _is_plain(x):
            y, sums = add_layer_norm_columns_reference(*operands)
        else:
            y, sums = add_layer_norm_columns(*operands, self.keep_sums)
        return y.t().view(x.shape), sums.t().view(x.shape) if self.keep_sums else sums

    def kernel_operands(self, x: Tensor, residual: Tensor) -> dict[str, Any] | None:
        if (alone := super().kernel_operands(x)) is None:
            return None
        added = {"x_bias": self.x_bias, "residual": _columns(residual.to(x.dtype))}
        return alone | added | {"sums": alone["x"] if self.keep_sums else None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, adds the residual"


def _constant(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=False)


def _columns(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).t()


def _is_plain(x: Tensor) -> bool:
    return not x.is_cuda or x.dtype == torch.float64
