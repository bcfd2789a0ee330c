"""The blocked product in Triton: one program per tile of Y, iterating over its block row."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import RASTER_SWIZZLE_ROWS, LaunchShape
from sparsefront_kernels.triton_device import swizzled_tile


@triton.jit
def _blocked_triton_kernel(
    x_ptr,  # [m, K] through its strides
    values_ptr,  # [blocks, BN, BK]
    pointers_ptr,  # int32 [block rows + 1]
    columns_ptr,  # int32 [blocks]
    bias_ptr,  # [n]
    y_ptr,  # [m, n] through its strides
    m,
    block_rows,
    stride_xm,
    stride_xk,
    stride_ym,
    stride_yn,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER_SWIZZLE: tl.constexpr,
):
    PARTS: tl.constexpr = (BN + BLOCK_N - 1) // BLOCK_N  # programs that share a block row higher than BLOCK_N
    STEPS: tl.constexpr = (BK + BLOCK_K - 1) // BLOCK_K  # per block
    row_block, part = swizzled_tile(tl.program_id(0), (m + BLOCK_M - 1) // BLOCK_M, block_rows * PARTS, RASTER_SWIZZLE)
    block_row = part // PARTS
    outputs = (part % PARTS) * BLOCK_N + tl.arange(0, BLOCK_N)  # within the block row
    output_exists = outputs < BN
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # int64: X and Y may pass 2^31 elements
    row_exists = rows < m
    steps = tl.arange(0, BLOCK_K)
    start = tl.load(pointers_ptr + block_row)
    stop = tl.load(pointers_ptr + block_row + 1)

    acc = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    # a single loop over all k-blocks of all blocks: nested loops would multiply the pipeline's buffers
    for step in range(0, (stop - start) * STEPS):
        index = start + step // STEPS
        column = tl.load(columns_ptr + index).to(tl.int64)
        inside = (step % STEPS) * BLOCK_K + steps  # inputs within the block
        exists = inside < BK
        x = tl.load(
            x_ptr + rows[:, None] * stride_xm + (column * BK + inside)[None, :] * stride_xk,
            mask=row_exists[:, None] & exists[None, :],
            other=0.0,
        )  # [BLOCK_M, BLOCK_K]
        w = tl.load(
            values_ptr + index.to(tl.int64) * (BN * BK) + outputs[None, :] * BK + inside[:, None],
            mask=output_exists[None, :] & exists[:, None],
            other=0.0,
        )  # [BLOCK_K, BLOCK_N], inputs contiguous
        acc = tl.dot(x, w, acc, input_precision="ieee")

    outputs += block_row * BN
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=output_exists, other=0.0).to(tl.float32)[None, :]
    y = y_ptr + rows[:, None] * stride_ym + outputs.to(tl.int64)[None, :] * stride_yn
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=row_exists[:, None] & output_exists[None, :])


def launch_blocked_triton(x: Tensor, y: Tensor, packed: Any, bias: Tensor | None, launch: LaunchShape) -> None:
    """Compute Y[M, N] = X[M, K] · Wᵀ + bias on the current device, with a `triton.BlockedTritonWeight`.

    Blocks smaller than 16 in either dimension are padded to 16 in registers for tl.dot: correct, but not fast.
    """
    m, (_, block_height, block_width) = x.shape[0], packed.values.shape
    block_rows = packed.row_pointers.numel() - 1
    column_blocks = block_rows * -(-block_height // launch.block_n)
    _blocked_triton_kernel[(-(-m // launch.block_m) * column_blocks,)](
        *(x, packed.values, packed.row_pointers, packed.block_columns, y if bias is None else bias, y),
        *(m, block_rows, *x.stride(), *y.stride()),
        BN=block_height,
        BK=block_width,
        HAS_BIAS=bias is not None,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        BLOCK_K=launch.block_k,
        RASTER_SWIZZLE=RASTER_SWIZZLE_ROWS,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
