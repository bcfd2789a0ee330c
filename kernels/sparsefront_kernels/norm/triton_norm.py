"""LayerNorm of columns in Triton: a program owns a block of columns and all their features."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.common.launch_shape import supports_pdl

# Elements of a block that one program holds in registers as float32 (of the 64 Ki registers of a multiprocessor); with more
# features a column is read three times, from the caches.
HELD = 32_768
# Columns of a program: a sector of a row in 16-bit types. On an H200 32 columns take as long where there are many and 20 % longer
# where there are few, 8 and 64 take longer throughout.
COLUMNS = 16
FEATURES_AT_A_TIME = 256  # where the block is not held


@triton.jit
def _layer_norm_columns_kernel(
    x_ptr,  # [d, m] through its strides
    y_ptr,  # [d, m], contiguous
    weight_ptr,  # [d]
    bias_ptr,  # [d]
    d,
    m,
    stride_xd,
    stride_xm,
    eps,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ONE_READ: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = (column < m)[None, :]
    feature = tl.arange(0, BLOCK_D)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # the kernel before may not have ended
        tl.extra.cuda.gdc_launch_dependents()  # who reads y waits for the end of this kernel
    if ONE_READ:  # BLOCK_D covers d
        inside = (feature < d)[:, None] & exists
        place = feature.to(tl.int64)[:, None] * stride_xd + column[None, :] * stride_xm
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, x - tl.sum(x, axis=0)[None, :] / d, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / d + eps)
        y = centred * scale[None, :]
        if HAS_WEIGHT:
            y *= tl.load(weight_ptr + feature, mask=feature < d, other=0.0).to(tl.float32)[:, None]
        if HAS_BIAS:
            y += tl.load(bias_ptr + feature, mask=feature < d, other=0.0).to(tl.float32)[:, None]
        tl.store(y_ptr + feature.to(tl.int64)[:, None] * m + column[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)
    else:
        total = tl.zeros([BLOCK_M], tl.float32)
        for start in range(0, d, BLOCK_D):
            row = start + feature.to(tl.int64)
            place = row[:, None] * stride_xd + column[None, :] * stride_xm
            total += tl.sum(tl.load(x_ptr + place, mask=(row < d)[:, None] & exists, other=0.0).to(tl.float32), axis=0)
        mean = total / d
        squares = tl.zeros([BLOCK_M], tl.float32)
        for start in range(0, d, BLOCK_D):
            row = start + feature.to(tl.int64)
            inside = (row < d)[:, None] & exists
            place = row[:, None] * stride_xd + column[None, :] * stride_xm
            centred = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
            squares += tl.sum(tl.where(inside, centred * centred, 0.0), axis=0)
        scale = tl.rsqrt(squares / d + eps)
        for start in range(0, d, BLOCK_D):
            row = start + feature.to(tl.int64)
            inside = (row < d)[:, None] & exists
            place = row[:, None] * stride_xd + column[None, :] * stride_xm
            y = (tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
            if HAS_WEIGHT:
                y *= tl.load(weight_ptr + row, mask=row < d, other=0.0).to(tl.float32)[:, None]
            if HAS_BIAS:
                y += tl.load(bias_ptr + row, mask=row < d, other=0.0).to(tl.float32)[:, None]
            tl.store(y_ptr + row[:, None] * m + column[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


def launch_layer_norm_columns(x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    """Write y [d, M] on the current device; operands as those of the op."""
    d, m = x.shape
    features = triton.next_power_of_2(d)
    one_read = features * COLUMNS <= HELD
    overlap = supports_pdl(x.device)
    _layer_norm_columns_kernel[(triton.cdiv(m, COLUMNS),)](
        x,
        y,
        y if weight is None else weight,
        y if bias is None else bias,
        d,
        m,
        *x.stride(),
        eps,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        ONE_READ=one_read,
        BLOCK_D=features if one_read else FEATURES_AT_A_TIME,
        BLOCK_M=COLUMNS,
        OVERLAP=overlap,
        num_warps=4 if features * COLUMNS <= HELD // 2 else 8,
        **({"launch_pdl": True} if overlap else {}),
    )
