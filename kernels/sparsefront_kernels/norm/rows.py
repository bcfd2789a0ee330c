"""LayerNorm and RMSNorm of rows, fused with the preceding sum and the following quantization, as a PyTorch op.

The CUDA kernel (`csrc/layer_norm_rows.cu`) runs if `rows_unsupported_reason` is None, otherwise PyTorch operations.
"""

import ctypes

import torch
from torch import Tensor

from sparsefront_kernels.cuda.launch import TYPE_CODES, argument_fields, launch_with
from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.device_support import unloadable_reason
from sparsefront_kernels.epilogue import accumulation_dtype
from sparsefront_kernels.quantized.quantize import quantize

LIBRARY = "layer_norm_rows"
MOST_FEATURES = 8192  # that the warps of a row can hold
_EIGHT = 8  # elements per lane, read in one copy


@custom_op("norm_rows")
def norm_rows(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    kind: str = "layer_norm",
    keep_norm: bool = True,
    keep_sums: bool = False,
    quantized: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The norm of each row of x + x_bias + residual, times weight, plus bias; computed in float32.

    Args:
        x: [M, d], float16, bfloat16 or float32, any strides; unaligned rows cost a copy.
        x_bias, weight, bias: [d] of any float dtype, or None.
        residual: [M, d] in x's dtype, any strides, or None; required with x_bias.
        kind: "layer_norm", or "rms_norm", which divides by the root mean square without subtracting the mean.
        keep_norm: whether to return the norm in x's dtype.
        keep_sums: whether to return the sum; requires a residual.
        quantized: whether to return the norm in e4m3, with a scale per row, as `quantized.quantize` does.
    Returns:
        the norm [M, d] in x's dtype; the sum, likewise, rounded before normalization; values [M, d] float8_e4m3fn and
        scales [M, 1] float32. Outputs not requested have no rows.
    Raises:
        ValueError: incompatible operands.
    """
    _check(x, x_bias, residual, weight, bias, kind, keep_sums)
    vectors = {"x_bias": x_bias, "weight": weight, "bias": bias}
    if rows_unsupported_reason(x.shape[1], x.dtype, x.device, **vectors) is not None:
        return _by_operations(x, residual, vectors, eps, kind, keep_norm, keep_sums, quantized)
    outputs = _empty(x, keep_norm, keep_sums, quantized)
    if x.numel():
        with torch.cuda.device_of(x):
            launch_norm_rows(x, residual, vectors, eps, kind, outputs)
    return outputs


@norm_rows.register_fake
def _(x, x_bias, residual, weight, bias, eps, kind="layer_norm", keep_norm=True, keep_sums=False, quantized=False):
    return _empty(x, keep_norm, keep_sums, quantized)


def rows_unsupported_reason(d: int, dtype: torch.dtype, device: torch.device, **vectors: Tensor | None) -> str | None:
    """Why the CUDA kernel does not support rows of d features with these vectors, or None; PyTorch operations support all."""
    if dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {dtype}"
    if d == 0 or d % _EIGHT:
        return f"takes features in eights, not {d}"
    if d > MOST_FEATURES:
        return f"takes up to {MOST_FEATURES} features, not {d}"
    for name, vector in vectors.items():
        if vector is not None and vector.dtype not in TYPE_CODES:
            return f"takes no {name} of {vector.dtype}"
    return unloadable_reason(device, LIBRARY)


def norm_rows_reference(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    kind: str = "layer_norm",
) -> tuple[Tensor, Tensor]:
    """Norm and sum of `norm_rows` in plain operations; 16-bit inputs are accumulated in float32, the sum is rounded once."""
    sums = x
    if residual is not None:
        wide = x.to(accumulation_dtype(x.dtype))
        if x_bias is not None:
            wide = wide + x_bias.to(wide.dtype)
        sums = (wide + residual.to(wide.dtype)).to(x.dtype)
    wide = sums.to(accumulation_dtype(x.dtype))
    centered = wide - wide.mean(1, keepdim=True) if kind == "layer_norm" else wide
    y = centered * (centered.square().mean(1, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight.to(y.dtype)
    y = y if bias is None else y + bias.to(y.dtype)
    return y.to(x.dtype).contiguous(), sums.contiguous()


def _keep(ctx, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    x, x_bias, residual, weight, bias, *ctx.how = inputs
    ctx.save_for_backward(x, x_bias, residual, weight, bias)
    ctx.mark_non_differentiable(*output[2:])


def _gradients(ctx, dy: Tensor, dsums: Tensor, *_) -> tuple[Tensor | None, ...]:
    """Gradients by recomputing with the reference: correct, not fast."""
    eps, kind, keep_norm, keep_sums, _ = ctx.how
    leaves = [part if part is None else part.detach().requires_grad_() for part in ctx.saved_tensors]
    with torch.enable_grad():
        outputs = norm_rows_reference(*leaves, eps, kind)
    active = [(output, grad) for output, grad, active in zip(outputs, (dy, dsums), (keep_norm, keep_sums)) if active]
    present = [part for part in leaves if part is not None]
    gradients = iter(torch.autograd.grad([output for output, _ in active], present, [grad for _, grad in active]))
    return *(None if part is None else next(gradients) for part in leaves), *(None for _ in ctx.how)


norm_rows.register_autograd(_gradients, setup_context=_keep)


def _by_operations(
    x: Tensor,
    residual: Tensor | None,
    vectors: dict[str, Tensor | None],
    eps: float,
    kind: str,
    keep_norm: bool,
    keep_sums: bool,
    quantized: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, sums = norm_rows_reference(x, vectors["x_bias"], residual, vectors["weight"], vectors["bias"], eps, kind)
    no_norm, no_sums, values, scales = _empty(x, keep_norm, keep_sums, quantized)
    if quantized and y.numel():
        values, scales = quantize(y, "fp8")
    return y if keep_norm else no_norm, sums if keep_sums else no_sums, values, scales


_POINTERS = ("x", "residual", "x_bias", "weight", "bias", "sums", "y", "values", "scales")
_STRIDES = ("x_stride", "residual_stride")
_NUMBERS = ("x_bias_type", "weight_type", "bias_type", "is_bfloat16", "m", "d", "rms", "pdl")


class Arguments(ctypes.Structure):
    """`Arguments` of the CUDA source."""

    _fields_ = [*argument_fields(_POINTERS, _STRIDES, _NUMBERS), ("eps", ctypes.c_float)]


def launch_norm_rows(
    x: Tensor,
    residual: Tensor | None,
    vectors: dict[str, Tensor | None],
    eps: float,
    kind: str,
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Write the outputs of `norm_rows` that are not empty, on the current device.

    Args:
        vectors: x_bias, weight and bias.
    Raises:
        RuntimeError: the launch failed.
    """
    x, residual = _aligned(x), None if residual is None else _aligned(residual)
    vectors = {name: None if vector is None else _aligned(vector) for name, vector in vectors.items()}
    y, sums, values, scales = outputs
    tensors = {"x": x, "residual": residual, "y": y, "sums": sums, "values": values, "scales": scales, **vectors}
    arguments = Arguments(
        **{name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None and tensor.numel()},
        **{f"{name}_type": 0 if vector is None else TYPE_CODES[vector.dtype] for name, vector in vectors.items()},
        x_stride=x.stride(0),
        residual_stride=0 if residual is None else residual.stride(0),
        is_bfloat16=int(x.dtype == torch.bfloat16),
        m=x.shape[0],
        d=x.shape[1],
        rms=int(kind == "rms_norm"),
        pdl=1,
        eps=eps,
    )
    launch_with(LIBRARY, arguments, x.device)


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, copied if its rows are not 16-byte aligned, which may happen with views."""
    strides_fit = tensor.stride(-1) == 1 and (tensor.ndim == 1 or tensor.stride(0) % _EIGHT == 0)
    return (
        tensor if strides_fit and tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=torch.contiguous_format)
    )


def _empty(x: Tensor, keep_norm: bool, keep_sums: bool, quantized: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m, d = x.shape
    y, sums = x.new_empty(m if keep_norm else 0, d), x.new_empty(m if keep_sums else 0, d)
    values = x.new_empty((m if quantized else 0, d), dtype=torch.float8_e4m3fn)
    return y, sums, values, x.new_empty((m if quantized else 0, 1), dtype=torch.float32)


def _check(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    kind: str,
    keep_sums: bool,
) -> None:
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"x must be float16, bfloat16 or float32 [M, d], not {x.dtype} {list(x.shape)}")
    if kind not in ("layer_norm", "rms_norm"):
        raise ValueError(f"kind {kind!r} is not one of layer_norm, rms_norm")
    for name, part in (("x_bias", x_bias), ("weight", weight), ("bias", bias)):
        if part is not None and (part.shape != x.shape[1:] or not part.is_floating_point()):
            raise ValueError(f"{name} must be a float [{x.shape[1]}], not {part.dtype} {list(part.shape)}")
        if part is not None and part.device != x.device:
            raise ValueError(f"{name} is on {part.device}, x on {x.device}")
    if residual is None:
        if x_bias is not None or keep_sums:
            raise ValueError("adds x_bias and keeps sums only where there is a residual")
    elif residual.shape != x.shape or residual.dtype != x.dtype or residual.device != x.device:
        raise ValueError(
            f"residual must be {x.dtype} {list(x.shape)} on {x.device}, "
            f"not {residual.dtype} {list(residual.shape)} on {residual.device}"
        )
