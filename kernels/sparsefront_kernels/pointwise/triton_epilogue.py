"""The separate epilogue in Triton: one pass over the sums."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import supports_pdl
from sparsefront_kernels.triton_device import activated

ROWS, COLUMNS = 4, 512  # per program: 16 elements per thread


@triton.jit
def _epilogue_kernel(
    sums_ptr,  # [rows, columns] through its strides
    bias_ptr,  # [rows]
    residual_ptr,  # [rows, columns] through its strides
    y_ptr,  # [rows, columns], contiguous
    rows,
    columns,
    stride_sr,
    stride_sc,
    stride_rr,
    stride_rc,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_wait()  # the product may still be running
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read y wait for the end of this one
    column_blocks = tl.cdiv(columns, BLOCK_C)
    row = (tl.program_id(0) // column_blocks).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = (tl.program_id(0) % column_blocks).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    sums = sums_ptr + row[:, None] * stride_sr + column[None, :] * stride_sc
    y = tl.load(sums, mask=exists, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    y = activated(y, ACTIVATION, y_ptr.dtype.element_ty.primitive_bitwidth == 16)
    if HAS_RESIDUAL:
        residual = residual_ptr + row[:, None] * stride_rr + column[None, :] * stride_rc
        y += tl.load(residual, mask=exists, other=0.0).to(tl.float32)
    tl.store(y_ptr + row[:, None] * columns + column[None, :], y.to(y_ptr.dtype.element_ty), mask=exists)


def launch_epilogue(sums: Tensor, y: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None) -> None:
    """Write y on the current device; operands as in the op."""
    rows, columns = sums.shape
    pdl = supports_pdl(sums.device)
    _epilogue_kernel[(triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS),)](
        *(sums, y if bias is None else bias, y if residual is None else residual, y),
        *(rows, columns, *sums.stride(), *(y if residual is None else residual).stride()),
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=activation,
        BLOCK_R=ROWS,
        BLOCK_C=COLUMNS,
        PDL=pdl,
        num_warps=4,
        **({"launch_pdl": True} if pdl else {}),
    )
