"""Triton code shared by kernels: rasterization order, activations of the epilogue, and the transpose."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import supports_pdl

BLOCK = 64  # side of a transposed tile: 128-byte reads and writes in 16-bit types


@triton.jit
def swizzled_tile(program, row_blocks, column_blocks, RASTER_SWIZZLE: tl.constexpr):
    """Block row and block column of a program.

    Concurrent programs share RASTER_SWIZZLE block rows of X and advance through the columns together, so that both the rows of
    X and the weights stay in L2.
    """
    per_swizzle = RASTER_SWIZZLE * column_blocks
    first_row = (program // per_swizzle) * RASTER_SWIZZLE
    rows = tl.minimum(row_blocks - first_row, RASTER_SWIZZLE)  # fewer at the end
    within = program % per_swizzle
    return first_row + within % rows, within // rows


INTERPRETED = not isinstance(swizzled_tile, triton.runtime.JITFunction)


@triton.jit
def activated(v, NAME: tl.constexpr, TO_16_BITS: tl.constexpr = False):
    """v in float32; NAME: a name of `epilogue.ACTIVATIONS`.

    TO_16_BITS: the result will be rounded to 16 bits. The erf GELU then uses the polynomial of the CUDA kernels
    (cuda/epilogue.cuh), with an error of 3e-5 and a fraction of erf's instructions.
    """
    if NAME == "relu":
        v = tl.where(v < 0.0, 0.0, v)  # NaN stays NaN, as in torch.relu
    elif NAME == "gelu" and TO_16_BITS:
        square = tl.minimum(v * v, 64.0)
        u = v * (0.7975077819 + square * (0.03700564812 - 0.0003515171048 * square))  # atanh(erf(v / √2))
        v = v / (1.0 + tl.exp(-2.0 * u))
    elif NAME == "gelu":
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        v = v / (
            1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v))
        )  # 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u))
    return v


@triton.jit
def _transpose_kernel(
    source_ptr,  # [rows, columns]
    target_ptr,  # [columns, rows]
    rows,
    columns,
    source_stride,
    target_stride,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_wait()  # the previous kernel may still be running
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read the target wait for the end of this one
    row_blocks = tl.cdiv(rows, BLOCK)
    row = (tl.program_id(0) % row_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = (tl.program_id(0) // row_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(source_ptr + row[:, None] * source_stride + column[None, :], mask=exists)
    tl.store(target_ptr + column[:, None] * target_stride + row[None, :], tl.trans(tile), mask=tl.trans(exists))


def transpose_into(source: Tensor, target: Tensor) -> None:
    """Write source [R, C] transposed into target [C, R], both with contiguous rows.

    From compute capability 9.0 on, by programmatic dependent launch.
    """
    rows, columns = source.shape
    pdl = supports_pdl(source.device)
    grid = (
        triton.cdiv(rows, BLOCK) * triton.cdiv(columns, BLOCK),
    )  # one-dimensional: the second dimension is limited to 65535
    _transpose_kernel[grid](
        *(source, target, rows, columns, source.stride(0), target.stride(0)),
        BLOCK=BLOCK,
        PDL=pdl,
        num_warps=4,
        **({"launch_pdl": True} if pdl else {}),
    )
