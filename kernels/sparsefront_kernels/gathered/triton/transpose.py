"""Transposing a matrix at the speed of memory, for kernels that take the other layout."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.common.launch import supports_pdl

BLOCK = 64  # rows and columns of a tile: both the reads and the writes are then runs of 128 bytes in 16-bit types


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
        # the kernel before may not have ended; ours is launched as soon as it lets us
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()  # a kernel that reads the target waits for the end of this one
    row_blocks = tl.cdiv(rows, BLOCK)
    row = (tl.program_id(0) % row_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = (tl.program_id(0) // row_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(source_ptr + row[:, None] * source_stride + column[None, :], mask=exists)
    tl.store(target_ptr + column[:, None] * target_stride + row[None, :], tl.trans(tile), mask=tl.trans(exists))


def transpose_into(source: Tensor, target: Tensor) -> None:
    """Write source [R, C] transposed into target [C, R]; neighbours in a row of either lie side by side in memory.

    From compute capability 9.0 on, launches pdl: this one is made while the kernel before ends, and lets the next be
    made, which begins once this has ended (programmatic dependent launch, CUDA C++ Programming Guide).
    """
    rows, columns = source.shape
    pdl = supports_pdl(source.device)
    grid = (triton.cdiv(rows, BLOCK) * triton.cdiv(columns, BLOCK),)  # one dimension: the second ends at 65535
    _transpose_kernel[grid](
        source,
        target,
        rows,
        columns,
        source.stride(0),
        target.stride(0),
        BLOCK=BLOCK,
        PDL=pdl,
        num_warps=4,
        **({"launch_pdl": True} if pdl else {}),
    )
