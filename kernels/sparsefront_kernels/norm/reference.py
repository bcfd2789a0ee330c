"""LayerNorm over the rows of a feature-major matrix in plain PyTorch: the reference in tests and the CPU path."""

from torch import Tensor

from sparsefront_kernels.epilogue import accumulation_dtype


def layer_norm_columns_reference(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Normalize each column of x [d, M] to mean 0 and variance 1, times weight [d], plus bias [d].

    Returns:
        [d, M], contiguous, in x's dtype; 16-bit inputs are accumulated in float32 and rounded once.
    """
    upcast = x.to(accumulation_dtype(x.dtype))
    centered = upcast - upcast.mean(0, keepdim=True)
    y = centered * (centered.square().mean(0, keepdim=True) + eps).rsqrt()
    if weight is not None:
        y = y * weight.to(y.dtype)[:, None]
    if bias is not None:
        y = y + bias.to(y.dtype)[:, None]
    return y.to(x.dtype).contiguous()


def add_layer_norm_columns_reference(
    x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """LayerNorm of the columns of x + x_bias + residual, rounded to x's dtype first; returns that sum too.

    Args:
        x_bias: [d], or None.
        residual: [d, M].
    """
    sums = x.to(accumulation_dtype(x.dtype))
    if x_bias is not None:
        sums = sums + x_bias.to(sums.dtype)[:, None]
    sums = (sums + residual.to(sums.dtype)).to(x.dtype).contiguous()
    return layer_norm_columns_reference(sums, weight, bias, eps), sums
