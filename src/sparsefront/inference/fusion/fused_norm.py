"""LayerNorm inside a feature-major residual stream."""

import torch
from sparsefront_kernels.norm import layer_norm_columns, layer_norm_columns_reference
from torch import Tensor, nn


class FusedNorm(nn.Module):
    """LayerNorm over the last dimension of [..., d], read by strides, written feature-major."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight.detach(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        columns = x.reshape(-1, x.shape[-1]).t()
        plain = not x.is_cuda or x.dtype == torch.float64
        run = layer_norm_columns_reference if plain else layer_norm_columns
        return run(columns, self.weight, self.bias, self.eps).t().view(x.shape)

    def extra_repr(self) -> str:
        return f"eps={self.eps}, feature_major"
