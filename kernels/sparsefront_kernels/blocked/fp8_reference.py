"""The product with a blocked e4m3 weight in plain PyTorch, in float64 on any device: the reference for the fp8 kernel."""

from torch import Tensor

from sparsefront_kernels.blocked.fp8_sm90 import GROUP, BlockedFp8Weight, dense_weight
from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.quantized.quantize import quantize


def dequantize_rows(q: Tensor, scales: Tensor) -> Tensor:
    """float64 [rows, columns] from e4m3 [rows, columns] and scales [rows, groups]."""
    return (q.double().unflatten(1, (scales.shape[1], -1)) * scales.double()[:, :, None]).flatten(1)


def blocked_fp8_reference(
    x: Tensor,
    x_scales: Tensor,
    packed: BlockedFp8Weight,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """Y = activation(X · Wᵀ + bias) + residual in float64, [M, N]; arguments as in `fp8_sm90.blocked_fp8`."""
    sums = dequantize_rows(x, x_scales) @ dense_weight(packed).t()
    return with_epilogue(sums, bias, activation, residual)


def blocked_fp8_quantized_reference(
    x: Tensor, x_scales: Tensor, packed: BlockedFp8Weight, bias: Tensor | None = None, *, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    """Reference for `fp8_sm90.blocked_fp8_quantized`, from float64 sums: e4m3 [M, N] and float32 scales [M, N / 128]."""
    y = blocked_fp8_reference(x, x_scales, packed, bias, activation=activation)
    return quantize(y.float(), "fp8", GROUP)
