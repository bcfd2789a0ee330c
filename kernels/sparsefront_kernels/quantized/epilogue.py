"""Epilogue of a product of quantized values: scales, bias, activation and residual, in one pass over the sums."""

import importlib.util

import torch
from torch import Tensor

from sparsefront_kernels.custom_op import custom_op, is_fused_later
from sparsefront_kernels.epilogue import check_activation, with_epilogue
from sparsefront_kernels.operands import check_epilogue

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None


def finished(
    sums: Tensor,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    dtype: torch.dtype,
    *,
    row_scales: Tensor | None = None,
    output_scales: Tensor | None = None,
    factor: float = 1.0,
) -> Tensor:
    """activation(sums · row_scales · output_scales · factor + bias) + residual in float32, rounded to a dtype.

    One Triton kernel in eager mode on a GPU; otherwise plain operations, which a compiled graph fuses.

    Args:
        sums: [M, N] of any dtype, row-major or the transpose of a row-major [N, M].
        bias: [N] of any float dtype, or None.
        activation: a name in `epilogue.ACTIVATIONS`.
        residual: [M, N] in `dtype`, any strides, or None.
        row_scales, output_scales: float32 [M, 1] and [N, 1], contiguous; None: 1.
    Returns:
        [M, N] with the strides of the sums; the sums themselves if there is nothing to do.
    Raises:
        ValueError: no such activation, or a residual with another shape or dtype.
    """
    check_activation(activation)
    if residual is not None:
        check_epilogue(sums.new_empty(sums.shape, dtype=dtype), activation, residual)
    scaled = row_scales is not None or output_scales is not None or factor != 1
    if not scaled and bias is None and activation == "none" and residual is None:
        return sums.to(dtype)
    if sums.is_cuda and TRITON_IS_INSTALLED and not is_fused_later():
        return scaled_epilogue(sums, row_scales, output_scales, factor, bias, activation, residual, dtype)
    y = sums.float()
    if factor != 1:
        y = y * factor
    if row_scales is not None:
        y = y * row_scales
    if output_scales is not None:
        y = y * output_scales.t()
    return with_epilogue(y, bias, activation, residual).to(dtype)


@custom_op("scaled_epilogue")
def scaled_epilogue(
    sums: Tensor,
    row_scales: Tensor | None,
    output_scales: Tensor | None,
    factor: float,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Like `finished`, in Triton."""
    y = _empty(sums, dtype)
    if y.numel():
        from sparsefront_kernels.quantized.triton_epilogue import launch_scaled_epilogue  # Triton may be missing

        with torch.cuda.device_of(sums):
            launch_scaled_epilogue(sums, y, row_scales, output_scales, factor, bias, activation, residual)
    return y


@scaled_epilogue.register_fake
def _(sums, row_scales, output_scales, factor, bias, activation, residual, dtype):
    return _empty(sums, dtype)


def _empty(sums: Tensor, dtype: torch.dtype) -> Tensor:
    m, n = sums.shape
    return sums.new_empty((m, n), dtype=dtype) if sums.stride(1) == 1 else sums.new_empty((n, m), dtype=dtype).t()
