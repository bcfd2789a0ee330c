"""LayerNorm of columns in Triton: a program owns a block of columns and all their features."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import supports_pdl

# Elements that one program holds in registers as float32 (an SM has 64 Ki registers); with more features a column is read three
# times, from the caches.
HELD = 32_768
# Columns per program: a sector of a row in 16-bit types. On an H200, 32 columns take as long when there are many and 20 %
# longer when there are few; 8 and 64 always take longer.
COLUMNS = 16
FEATURES_AT_A_TIME = 256  # if the block does not fit


@triton.jit
def _layer_norm_columns_kernel(
    x_ptr,  # [d, m], strided
    residual_ptr,  # [d, m], strided
    x_bias_ptr,  # [d]
    sums_ptr,  # [d, m], contiguous
    y_ptr,  # [d, m], contiguous
    weight_ptr,  # [d]
    bias_ptr,  # [d]
    d,
    m,
    stride_xd,
    stride_xm,
    stride_rd,
    stride_rm,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_X_BIAS: tl.constexpr,
    KEEP_SUMS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ONE_READ: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.arange(0, BLOCK_D).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()  # the previous kernel may still be running
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read y wait for the end of this one
    if ONE_READ:  # BLOCK_D covers d
        exists = feature < d
        inside = exists[:, None] & (column < m)[None, :]
        place = feature[:, None] * m + column[None, :]
        x = _sums(
            x_ptr + feature[:, None] * stride_xd + column[None, :] * stride_xm,
            residual_ptr + feature[:, None] * stride_rd + column[None, :] * stride_rm,
            x_bias_ptr + feature,
            exists,
            inside,
            HAS_RESIDUAL,
            HAS_X_BIAS,
        )
        if KEEP_SUMS:
            tl.store(sums_ptr + place, x.to(y_ptr.dtype.element_ty), mask=inside)
        centered = tl.where(inside, x - tl.sum(x, axis=0)[None, :] / d, 0.0)
        scale = tl.rsqrt(tl.sum(centered * centered, axis=0) / d + eps)
        y = _scaled(centered * scale[None, :], weight_ptr + feature, bias_ptr + feature, exists, HAS_WEIGHT, HAS_BIAS)
        tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)
    else:
        mean = tl.zeros([BLOCK_M], tl.float32)
        scale = tl.zeros([BLOCK_M], tl.float32)
        for phase in tl.static_range(3):  # the mean, the variance, the result
            for start in range(0, d, BLOCK_D):
                row = start + feature
                exists = row < d
                inside = exists[:, None] & (column < m)[None, :]
                place = row[:, None] * m + column[None, :]
                x = _sums(
                    x_ptr + row[:, None] * stride_xd + column[None, :] * stride_xm,
                    residual_ptr + row[:, None] * stride_rd + column[None, :] * stride_rm,
                    x_bias_ptr + row,
                    exists,
                    inside,
                    HAS_RESIDUAL,
                    HAS_X_BIAS,
                )
                centered = tl.where(inside, x - mean[None, :], 0.0)
                if phase == 0:
                    mean += tl.sum(x, axis=0)
                elif phase == 1:
                    scale += tl.sum(centered * centered, axis=0)
                else:
                    y = _scaled(
                        centered * scale[None, :], weight_ptr + row, bias_ptr + row, exists, HAS_WEIGHT, HAS_BIAS
                    )
                    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)
                    if KEEP_SUMS:
                        tl.store(sums_ptr + place, x.to(y_ptr.dtype.element_ty), mask=inside)
            if phase == 0:
                mean /= d
            elif phase == 1:
                scale = tl.rsqrt(scale / d + eps)


@triton.jit
def _sums(x, residual, x_bias, exists, inside, HAS_RESIDUAL: tl.constexpr, HAS_X_BIAS: tl.constexpr):
    """The values to normalize: in float32, but rounded as a separate sum would be; 0 outside."""
    loaded = tl.load(x, mask=inside, other=0.0)
    sums = loaded.to(tl.float32)
    if HAS_X_BIAS:
        sums += tl.load(x_bias, mask=exists, other=0.0).to(tl.float32)[:, None]
    if HAS_RESIDUAL:
        sums += tl.load(residual, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, sums.to(loaded.dtype).to(tl.float32), 0.0)


@triton.jit
def _scaled(y, weight, bias, exists, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    """y * weight + bias, if given."""
    if HAS_WEIGHT:
        y *= tl.load(weight, mask=exists, other=0.0).to(tl.float32)[:, None]
    if HAS_BIAS:
        y += tl.load(bias, mask=exists, other=0.0).to(tl.float32)[:, None]
    return y


def launch_layer_norm_columns(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    x_bias: Tensor | None = None,
    residual: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Write y [d, M], and x + x_bias + residual to sums, on the current device; operands as in the ops."""
    d, m = x.shape
    features = triton.next_power_of_2(d)
    one_read = features * COLUMNS <= HELD
    pdl = supports_pdl(x.device)
    _layer_norm_columns_kernel[(triton.cdiv(m, COLUMNS),)](
        *(x, *(y if part is None else part for part in (residual, x_bias, sums)), y),
        *(y if part is None else part for part in (weight, bias)),
        *(d, m, *x.stride(), *(y if residual is None else residual).stride(), eps),
        HAS_RESIDUAL=residual is not None,
        HAS_X_BIAS=x_bias is not None,
        KEEP_SUMS=sums is not None,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        ONE_READ=one_read,
        BLOCK_D=features if one_read else FEATURES_AT_A_TIME,
        BLOCK_M=COLUMNS,
        PDL=pdl,
        # on an H200, 1024 features: 8 warps take 4 % less than 4, and 12 % less with a residual
        num_warps=4 if features * COLUMNS < HELD // 2 else 8,
        **({"launch_pdl": True} if pdl else {}),
    )
