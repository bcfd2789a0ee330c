"""Quantization of activations and weights to e4m3 or int8, in plain PyTorch operations and as a Triton kernel.

    amax    largest finite absolute value of a row, or of a group of a row's inputs
    scale   amax · (1 / 448) for fp8, amax · (1 / 127) for int8, in float32; 1 if amax is 0, and at least 2^-100
    value   x · (1 / scale), rounded to the nearest e4m3 or integer, ties to even; saturates

Every operation is rounded to float32, so both implementations are bitwise equal. In a compiled graph the operations fuse with
the preceding norm or activation; there Inductor divides less exactly and skips rounding X to 16 bits, so some values differ
by one step.

In fp8, NaN stays NaN and an infinity becomes NaN, because e4m3 has no infinity. int8 has neither: the scale of a row (or
group) with NaN or an infinity is NaN, and so is everything multiplied by it.
"""

import importlib.util
import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefront_kernels.custom_op import custom_op, is_fused_later
from sparsefront_kernels.epilogue import ACTIVATIONS, check_activation

PRECISIONS = ("fp8", "int8")
VALUE_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
LARGEST = {"fp8": 448.0, "int8": 127.0}
SMALLEST_SCALE = 2.0**-100  # keeps the reciprocal finite
X_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None


class Quantized(NamedTuple):
    """A quantized matrix: values times scales.

    Args:
        values: float8_e4m3fn or int8 [M, K].
        scales: float32 [M, 1], one per row; [M, K / group], one per row and group of inputs; or [1, 1], one static scale.
    """

    values: Tensor
    scales: Tensor

    @property
    def precision(self) -> str:
        """Either "fp8" or "int8"."""
        return "int8" if self.values.dtype == torch.int8 else "fp8"

    def row_scales(self) -> Tensor:
        """Scales [M, 1]; a static scale is expanded.

        Raises:
            ValueError: the scales are per group.
        """
        m = self.values.shape[0]
        if self.scales.shape[1] != 1:
            raise ValueError(f"takes scales per row [{m}, 1] or one static [1, 1], not {list(self.scales.shape)}")
        return self.scales.expand(m, 1).contiguous()


def quantize(x: Tensor, precision: str = "fp8", group: int | None = None, scale: Tensor | None = None) -> Quantized:
    """Quantize X with dynamic scales or a static one.

    Args:
        x: float16, bfloat16 or float32 [M, K].
        precision: "fp8" or "int8".
        group: inputs that share a scale, a power of two that divides K; None: a whole row.
        scale: static fp8 scale, one float32 element on x's device; larger values saturate (`count_saturated`).
    Raises:
        ValueError: unknown precision or dtype, wrong shape, a group that does not divide K, or a static scale with a group or
            int8.
    """
    _check(x, precision, group, scale)
    if x.is_cuda and not is_fused_later() and _runs_triton(x.device):
        return Quantized(*quantize_op(x, precision, group, scale))
    return _by_operations(x, precision, group, scale)


def quantize_activated(x: Tensor, activation: str, precision: str = "fp8", group: int | None = None) -> Quantized:
    """Quantize activation(X), computed in float32, in one pass: for products that cannot quantize their output.

    On a GPU this uses our kernel in compiled graphs too: Inductor computes the activation of a row twice, for the scale and for
    the values, which takes four times as long for GELU of 4096 features.

    Args:
        x, precision, group: as in `quantize`.
        activation: a name in `epilogue.ACTIVATIONS`.
    """
    _check(x, precision, group, None)
    check_activation(activation)
    if x.is_cuda and _runs_triton(x.device):
        return Quantized(*quantize_op(x, precision, group, None, activation))
    return _by_operations(ACTIVATIONS[activation](x.float()), precision, group, None)


def quantize_weight(weight: Tensor, precision: str) -> Quantized:
    """Quantize W [N, K] with a scale per output, [N, 1]."""
    return quantize(weight, precision)


def dequantize(quantized: Quantized) -> Tensor:
    """float32 [M, K]: values times scales."""
    values, scales = quantized
    groups = scales.shape[1]
    if groups == 1:
        return values.float() * scales
    m, k = values.shape
    return (values.float().view(m, groups, k // groups) * scales[:, :, None]).view(m, k)


def count_saturated(x: Tensor, scale: Tensor) -> Tensor:
    """Number of finite values of x that a static fp8 scale clamps to ±448: int64, zero-dimensional."""
    upcast = x.float()
    return ((upcast * scale.float().reciprocal()).abs() > LARGEST["fp8"]).logical_and(upcast.isfinite()).sum()


def _by_operations(x: Tensor, precision: str, group: int | None, scale: Tensor | None) -> Quantized:
    m, k = x.shape
    upcast = x.float()
    finite = upcast.abs() < math.inf
    if scale is not None:
        scales = scale.float().reshape(1, 1)
        return Quantized(_values(upcast * scales.reciprocal(), finite, precision), scales)
    groups = upcast.view(m, k // (group or k), group or k)
    finite = finite.view_as(groups)
    amax = torch.where(finite, groups.abs(), 0.0).amax(dim=2)
    scales = torch.where(amax == 0, 1.0, (amax * (1 / LARGEST[precision])).clamp(min=SMALLEST_SCALE))
    values = _values(groups * scales.reciprocal()[:, :, None], finite, precision).view(m, k)
    if precision == "int8":
        scales = torch.where(finite.all(dim=2), scales, math.nan)
    return Quantized(values, scales)


def _values(scaled: Tensor, finite: Tensor, precision: str) -> Tensor:
    """Round the quotients; those of NaN and infinities become NaN, or 0 in int8."""
    limit = LARGEST[precision]
    inside = scaled.clamp(-limit, limit)
    if precision == "int8":
        return torch.where(finite, inside.round(), 0.0).to(torch.int8)
    return torch.where(finite, inside, math.nan).to(torch.float8_e4m3fn)


@custom_op("quantize")
def quantize_op(
    x: Tensor, precision: str, group: int | None, scale: Tensor | None, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    """Values and scales of `quantize` after an activation, by one Triton kernel with a program per row."""
    from sparsefront_kernels.quantized.triton_quantize import launch_quantize  # Triton may be missing

    x = x if x.stride(1) == 1 else x.contiguous()
    values, scales = _empty(x, precision, group, scale)
    if values.numel():
        with torch.cuda.device_of(x):
            launch_quantize(x, values, scales, group, scale, LARGEST[precision], SMALLEST_SCALE, activation)
    if scale is not None:
        scales.copy_(scale.reshape(1, 1))
    return values, scales


@quantize_op.register_fake
def _(x, precision, group, scale, activation="none"):
    return _empty(x, precision, group, scale)


def _empty(x: Tensor, precision: str, group: int | None, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    m, k = x.shape
    shape = (m, k // (group or k)) if scale is None else (1, 1)
    values = x.new_empty((m, k), dtype=VALUE_DTYPES[precision])
    return values, x.new_empty(shape, dtype=torch.float32)


def _runs_triton(device: torch.device) -> bool:
    """Whether Triton can write e4m3 on the device."""
    return TRITON_IS_INSTALLED and torch.cuda.get_device_capability(device) >= (8, 9)


def _check(x: Tensor, precision: str, group: int | None, scale: Tensor | None) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    if x.ndim != 2 or x.shape[1] == 0 or x.dtype not in X_DTYPES:
        raise ValueError(f"x must be float16, bfloat16 or float32 [M, K], not {x.dtype} {list(x.shape)}")
    if group is not None and (group < 1 or group & (group - 1) or x.shape[1] % group):
        raise ValueError(f"group must be a power of two that divides K = {x.shape[1]}, not {group}")
    if scale is None:
        return
    if precision == "int8" or group is not None:
        raise ValueError("a static scale is for fp8 without groups: int8 tells of NaN by the scale of its row")
    if scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != x.device:
        raise ValueError(
            f"scale must be one float32 on {x.device}, not {scale.dtype} {list(scale.shape)} on {scale.device}"
        )
