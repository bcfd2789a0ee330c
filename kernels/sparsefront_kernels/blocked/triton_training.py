"""Gradient of kept blocks in Triton: one program per few blocks of a block row, iterating over the rows of X."""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import power_of_two_within


@triton.jit
def _weight_gradient_kernel(
    dy_ptr,  # [m, N], rows contiguous
    x_ptr,  # [m, K], rows contiguous
    gradient_ptr,  # [splits, blocks, BN, BK]
    chunks_ptr,  # int32 [chunks, 3]: block row, first block, how many blocks
    columns_ptr,  # int32 [blocks]
    m,
    blocks,
    chunks,
    rows_per_split,  # a multiple of BLOCK_M
    stride_dy,
    stride_x,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SIDE_BY_SIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    K_PARTS: tl.constexpr = (BK + BLOCK_K - 1) // BLOCK_K  # programs that share a block's inputs
    program = tl.program_id(0)
    # concurrent programs read the same rows, which stay in L2
    chunk, split = program % chunks, program // chunks
    k_part, n_part = tl.program_id(1) % K_PARTS, tl.program_id(1) // K_PARTS
    block_row = tl.load(chunks_ptr + 3 * chunk)
    first_block = tl.load(chunks_ptr + 3 * chunk + 1)
    count = tl.load(chunks_ptr + 3 * chunk + 2)

    outputs = n_part * BLOCK_N + tl.arange(0, BLOCK_N)  # within the block
    place = tl.arange(0, SIDE_BY_SIDE * BLOCK_K)
    inputs = k_part * BLOCK_K + place % BLOCK_K  # within the block
    block = first_block + tl.minimum(place // BLOCK_K, count - 1)
    columns = tl.load(columns_ptr + block) * BK + inputs
    if BK % BLOCK_K == 0:  # coalesced loads
        columns = tl.max_contiguous(tl.multiple_of(columns, BLOCK_K), BLOCK_K)
    output_exists, input_exists = outputs < BN, inputs < BK
    rows = tl.arange(0, BLOCK_M)
    start = split * rows_per_split
    stop = tl.minimum(start + rows_per_split, m)
    dy = dy_ptr + (start + rows).to(tl.int64)[:, None] * stride_dy + (block_row * BN + outputs)[None, :]
    x = x_ptr + (start + rows).to(tl.int64)[:, None] * stride_x + columns[None, :]

    acc = tl.full([BLOCK_N, SIDE_BY_SIDE * BLOCK_K], 0.0, tl.float32)
    for row in range(start, stop, BLOCK_M):
        exists = row + rows < stop
        of_dy = tl.load(dy, mask=exists[:, None] & output_exists[None, :], other=0.0)
        of_x = tl.load(x, mask=exists[:, None] & input_exists[None, :], other=0.0)
        acc = tl.dot(tl.trans(of_dy), of_x, acc, input_precision="ieee")
        dy += BLOCK_M * stride_dy
        x += BLOCK_M * stride_x

    is_stored = (place // BLOCK_K < count) & input_exists
    index = (split * blocks + block).to(tl.int64)[None, :] * (BN * BK)
    target = gradient_ptr + index + outputs[:, None] * BK + inputs[None, :]
    tl.store(target, acc.to(gradient_ptr.dtype.element_ty), mask=output_exists[:, None] & is_stored[None, :])


@dataclass(frozen=True, order=True)
class GradientLaunch:
    """Launch parameters of the weight gradient.

    Args:
        side_by_side: blocks of one block row per program, which share reads of dY.
        block_m: rows of X and dY loaded together.
        splits: programs that share the rows; their sums are reduced afterwards in a fixed order.
    """

    side_by_side: int
    block_m: int
    splits: int
    num_warps: int
    num_stages: int


def launch_weight_gradient(
    dy: Tensor, x: Tensor, gradient: Tensor, *, chunks: Tensor, block_columns: Tensor, launch: GradientLaunch
) -> None:
    """Compute the gradient of every kept block, dYᵀ · X of its outputs and inputs, on the current device.

    Args:
        dy: [M, N], x: [M, K], both with contiguous rows.
        gradient: [splits, blocks, bn, bk]: the sums of each split.
        chunks: int32 [chunks, 3]: block row, first block, and number of blocks, at most `side_by_side`.
        block_columns: int32 [blocks].
    """
    splits, blocks, height, width = gradient.shape
    block_n, block_k = (power_of_two_within(side, lowest=16, highest=128) for side in (height, width))
    rows_per_split = -(-x.shape[0] // (splits * launch.block_m)) * launch.block_m
    grid = (len(chunks) * splits, -(-height // block_n) * -(-width // block_k))
    _weight_gradient_kernel[grid](
        *(dy, x, gradient, chunks, block_columns),
        *(x.shape[0], blocks, len(chunks), rows_per_split, dy.stride(0), x.stride(0)),
        BN=height,
        BK=width,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SIDE_BY_SIDE=launch.side_by_side,
        BLOCK_M=launch.block_m,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
