"""`scaled_epilogue` in Triton: one pass over the sums along their contiguous dimension."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.triton_device import activated

SHORT, LONG = 4, 512  # tile of a program: 16 elements per thread


@triton.jit
def _scaled_epilogue_kernel(
    sums_ptr,  # [rows, columns], strided like the residual and y
    y_ptr,
    row_scales_ptr,  # [rows]
    output_scales_ptr,  # [columns]
    bias_ptr,  # [columns]
    residual_ptr,
    factor,
    rows,
    columns,
    stride_sr,
    stride_sc,
    stride_rr,
    stride_rc,
    stride_yr,
    stride_yc,
    SCALES_ROWS: tl.constexpr,
    SCALES_OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    column_blocks = tl.cdiv(columns, BLOCK_C)
    row = (tl.program_id(0) // column_blocks).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = (tl.program_id(0) % column_blocks).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    sums = sums_ptr + row[:, None] * stride_sr + column[None, :] * stride_sc
    y = tl.load(sums, mask=exists, other=0).to(tl.float32) * factor
    if SCALES_ROWS:
        y *= tl.load(row_scales_ptr + row, mask=row < rows, other=0.0)[:, None]
    if SCALES_OUTPUTS:
        y *= tl.load(output_scales_ptr + column, mask=column < columns, other=0.0)[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    y = activated(y, ACTIVATION, y_ptr.dtype.element_ty.primitive_bitwidth == 16)
    if HAS_RESIDUAL:
        residual = residual_ptr + row[:, None] * stride_rr + column[None, :] * stride_rc
        y += tl.load(residual, mask=exists, other=0.0).to(tl.float32)
    target = y_ptr + row[:, None] * stride_yr + column[None, :] * stride_yc
    tl.store(target, y.to(y_ptr.dtype.element_ty), mask=exists)


def launch_scaled_epilogue(
    sums: Tensor,
    y: Tensor,
    row_scales: Tensor | None,
    output_scales: Tensor | None,
    factor: float,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
) -> None:
    """Write y on the current device; operands as in the op."""
    rows, columns = sums.shape
    block_r, block_c = (SHORT, LONG) if y.stride(1) == 1 else (LONG, SHORT)
    addend = residual if residual is not None else y
    _scaled_epilogue_kernel[(triton.cdiv(rows, block_r) * triton.cdiv(columns, block_c),)](
        *(sums, y, y if row_scales is None else row_scales, y if output_scales is None else output_scales),
        *(y if bias is None else bias.contiguous(), addend),
        *(factor, rows, columns, *sums.stride(), *addend.stride(), *y.stride()),
        SCALES_ROWS=row_scales is not None,
        SCALES_OUTPUTS=output_scales is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=activation,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        num_warps=4,
    )
