"""`quantize` in Triton: a program per row, which is kept in registers up to 8192 inputs and read twice beyond."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.triton_device import INTERPRETED, activated

INTERPRETED_HERE = tl.constexpr(INTERPRETED)
MOST_INPUTS = 8192  # longest row kept in registers


@triton.jit
def _gelu(v):
    """The 16-bit polynomial of `activated` with the hardware's tanh (error 5e-4): one instruction instead of ten for exp and
    a division, in a kernel that is compute-bound.
    """
    square = tl.minimum(v * v, 64.0)
    u = v * (0.7975077819 + square * (0.03700564812 - 0.0003515171048 * square))  # atanh(erf(v / √2))
    if INTERPRETED_HERE:
        tanh = 1.0 - 2.0 / (tl.exp(2.0 * u) + 1.0)
    else:
        tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1)
    half = 0.5 * v
    return half + half * tanh


@triton.jit
def _load(row_ptr, column, columns, ACTIVATION: tl.constexpr):
    """Inputs in float32 after the activation, and a mask of the finite ones."""
    x = tl.load(row_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    if ACTIVATION == "gelu":
        x = _gelu(x)
    else:
        x = activated(x, ACTIVATION, True)
    return x, tl.abs(x) < float("inf")


@triton.jit
def _scale_of(amax, LARGEST: tl.constexpr, SMALLEST_SCALE: tl.constexpr):
    return tl.where(amax == 0.0, 1.0, tl.maximum(amax * (1 / LARGEST), SMALLEST_SCALE))


@triton.jit
def _reciprocal(scale, INTERPRETED: tl.constexpr):
    """1 / scale, rounded to nearest, unlike Triton's own division."""
    if INTERPRETED:
        return 1.0 / scale
    else:
        return tl.div_rn(scale * 0.0 + 1.0, scale)


@triton.jit
def _store(values_ptr, column, columns, scaled, finite, LARGEST: tl.constexpr, TO_INT8: tl.constexpr):
    inside = tl.minimum(tl.maximum(scaled, -LARGEST), LARGEST)
    if TO_INT8:
        # adding 1.5 · 2^23 leaves no fractional bits: rounds to even; must not be contracted
        inside = tl.where(finite, (inside + 12582912.0) - 12582912.0, 0.0)
    else:
        inside = tl.where(finite, inside, float("nan"))
    tl.store(values_ptr + column, inside.to(values_ptr.dtype.element_ty), mask=column < columns)


@triton.jit
def _quantize_kernel(
    x_ptr,  # [rows, columns] with contiguous rows
    scale_ptr,  # static scale, float32 [1]
    values_ptr,  # [rows, columns], contiguous
    scales_ptr,  # float32 [rows, columns / GROUP], contiguous; not written for a static scale
    columns,
    stride_xr,
    LARGEST: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
    TO_INT8: tl.constexpr,
    STATIC: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GROUP: tl.constexpr,  # 0: a whole row
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    FAST: tl.constexpr,  # fp8 with a scale per row that fits one block: fewer instructions, the same values
    INTERPRETED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xr
    values_ptr += row * columns
    lane = tl.arange(0, BLOCK)
    if STATIC:
        reciprocal = _reciprocal(tl.load(scale_ptr), INTERPRETED)
        for start in range(0, columns, BLOCK):
            x, finite = _load(x_ptr, start + lane, columns, ACTIVATION)
            _store(values_ptr, start + lane, columns, x * reciprocal, finite, LARGEST, TO_INT8)
    elif GROUP > 0:
        groups = columns // GROUP
        member = tl.arange(0, GROUP)[None, :]
        for start in range(0, columns, BLOCK):
            group = start // GROUP + tl.arange(0, BLOCK // GROUP)
            column = group[:, None] * GROUP + member
            x, finite = _load(x_ptr, column, columns, ACTIVATION)
            scale = _scale_of(tl.max(tl.where(finite, tl.abs(x), 0.0), axis=1), LARGEST, SMALLEST_SCALE)
            reciprocal = _reciprocal(scale, INTERPRETED)
            _store(values_ptr, column, columns, x * reciprocal[:, None], finite, LARGEST, TO_INT8)
            if TO_INT8:
                scale = tl.where(tl.min(finite.to(tl.int32), axis=1) == 1, scale, float("nan"))
            tl.store(scales_ptr + row * groups + group, scale, mask=group < groups)
    elif FAST:
        x, _ = _load(x_ptr, lane, columns, ACTIVATION)
        amax = tl.max(tl.abs(x), axis=0)  # ignores NaN unless all are NaN
        amax = tl.where(amax == amax, amax, 0.0)
        if amax == float("inf"):
            finite = tl.abs(x) < float("inf")
            amax = tl.max(tl.where(finite, tl.abs(x), 0.0), axis=0)
            x = tl.where(finite, x, float("nan"))
        scale = _scale_of(amax, LARGEST, SMALLEST_SCALE)
        scaled = x * _reciprocal(scale, INTERPRETED)  # up to a bit too large; the conversion rounds it away
        tl.store(values_ptr + lane, scaled.to(values_ptr.dtype.element_ty), mask=lane < columns)
        tl.store(scales_ptr + row, scale)
    elif ONE_BLOCK:
        x, finite = _load(x_ptr, lane, columns, ACTIVATION)
        scale = _scale_of(tl.max(tl.where(finite, tl.abs(x), 0.0), axis=0), LARGEST, SMALLEST_SCALE)
        _store(values_ptr, lane, columns, x * _reciprocal(scale, INTERPRETED), finite, LARGEST, TO_INT8)
        if TO_INT8:
            scale = tl.where(tl.min(finite.to(tl.int32), axis=0) == 1, scale, float("nan"))
        tl.store(scales_ptr + row, scale)
    else:
        amax = tl.zeros([BLOCK], tl.float32)
        all_finite = tl.full([BLOCK], 1, tl.int32)
        for start in range(0, columns, BLOCK):
            x, finite = _load(x_ptr, start + lane, columns, ACTIVATION)
            amax = tl.maximum(amax, tl.where(finite, tl.abs(x), 0.0))
            all_finite = tl.minimum(all_finite, finite.to(tl.int32))
        scale = _scale_of(tl.max(amax, axis=0), LARGEST, SMALLEST_SCALE)
        reciprocal = _reciprocal(scale, INTERPRETED)
        for start in range(0, columns, BLOCK):
            x, finite = _load(x_ptr, start + lane, columns, ACTIVATION)
            _store(values_ptr, start + lane, columns, x * reciprocal, finite, LARGEST, TO_INT8)
        if TO_INT8:
            scale = tl.where(tl.min(all_finite, axis=0) == 1, scale, float("nan"))
        tl.store(scales_ptr + row, scale)


def launch_quantize(
    x: Tensor,
    values: Tensor,
    scales: Tensor,
    group: int | None,
    scale: Tensor | None,
    largest: float,
    smallest_scale: float,
    activation: str = "none",
) -> None:
    """Write values, and scales unless the scale is static, on the current device.

    Args:
        x: [M, K] with contiguous rows, M and K at least 1.
        values, scales: contiguous, as in `Quantized`.
        group: inputs that share a scale, or None.
        scale: the static scale, or None.
        largest: maximum magnitude of a value.
        smallest_scale: lower bound of the dynamic scales.
        activation: applied to x before quantization.
    """
    rows, columns = x.shape
    block = max(min(triton.next_power_of_2(columns), MOST_INPUTS), group or 1)
    fast = scale is None and group is None and columns <= block and values.is_floating_point() and not INTERPRETED
    _quantize_kernel[(rows,)](
        x,
        x if scale is None else scale,
        values,
        scales,
        columns,
        x.stride(0),
        LARGEST=largest,
        SMALLEST_SCALE=smallest_scale,
        TO_INT8=not values.is_floating_point(),
        STATIC=scale is not None,
        ACTIVATION=activation,
        GROUP=group or 0,
        BLOCK=block,
        ONE_BLOCK=columns <= block,
        FAST=fast,
        INTERPRETED=INTERPRETED,
        num_warps=4 if block <= 2048 else 8,
        enable_fp_fusion=activation != "none" and fast,
    )
