"""The gathered product in plain PyTorch: the reference for tests, and the CPU implementation."""

import torch
from torch import Tensor

from sparsefront_kernels.epilogue import accumulation_dtype, with_epilogue
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.operands import check_epilogue


def gathered_reference(
    x: Tensor,
    stored: GatheredFormat,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Y[M, N] = activation(X[M, K] · W[N, K]ᵀ + bias) + residual.

    Tile by tile: take the kept columns of X, multiply by the panel.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are accumulated in float32 and rounded once.
        stored: the weight, on x's device.
        bias: [N] or None.
        activation: a name of `epilogue.ACTIVATIONS`.
        residual: [M, N] in x's dtype, or None.
    Returns:
        [M, N] in x's dtype. Only kept columns of X are read.
    Raises:
        ValueError: an unknown activation, or an incompatible residual.
    """
    precision = accumulation_dtype(x.dtype)
    wide = x.to(precision)
    by_input = wide.t().contiguous()  # kept inputs become contiguous rows, which gather several times faster
    products = [by_input.index_select(0, inputs).t() @ panel.to(precision) for _, inputs, panel in stored.panels()]
    y = torch.cat([wide[:, :0], *products], dim=1)  # [M, stored outputs], in the order of output_index
    if not stored.consecutive:
        y = wide.new_zeros(wide.shape[0], stored.shape[0]).index_copy_(1, stored.output_index.long(), y)
    check_epilogue(x.new_empty(y.shape), activation, residual)
    return with_epilogue(y, bias, activation, residual).to(x.dtype)
