"""The n:m product in Triton: rebuild a dense window of W in registers, then use the tensor cores."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.common.launch import RASTER_SWIZZLE_ROWS, launch_shape, power_of_two_within
from sparsefront_kernels.common.triton_device import swizzled_tile


@triton.jit
def with_kept(w, values_ptr, indices_ptr, stored, exists, places):
    """The window [BLOCK_N, WINDOW, PADDED] with one more kept weight of each group put into its place."""
    value = tl.load(values_ptr + stored, mask=exists, other=0.0)  # [BLOCK_N, WINDOW]
    place = tl.load(indices_ptr + stored, mask=exists, other=0).to(tl.int32)
    return tl.where(place[:, :, None] == places[None, None, :], value[:, :, None], w)


@triton.jit
def _n_m_triton_kernel(
    x_ptr,  # [m, K] through its strides
    values_ptr,  # [n, groups, KEPT]
    indices_ptr,  # uint8 [n, groups, KEPT]
    bias_ptr,  # [n]
    y_ptr,  # [m, n] through its strides
    m,
    n,
    groups,
    stride_xm,
    stride_xk,
    stride_ym,
    stride_yn,
    KEPT: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PADDED: tl.constexpr,  # GROUP_SIZE rounded up to a power of two
    WINDOW: tl.constexpr,  # groups per step
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    RASTER_SWIZZLE: tl.constexpr,
):
    BLOCK_K: tl.constexpr = WINDOW * PADDED
    row_block, column_block = swizzled_tile(
        tl.program_id(0), (m + BLOCK_M - 1) // BLOCK_M, (n + BLOCK_N - 1) // BLOCK_N, RASTER_SWIZZLE
    )
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # int64: X and Y may pass 2^31 elements
    outputs = column_block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_exists = rows < m
    output_exists = outputs < n
    windows = tl.arange(0, WINDOW)
    places = tl.arange(0, PADDED)
    steps = tl.arange(0, BLOCK_K)

    acc = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)  # Yᵀ: W comes from registers, which only the first operand may
    for first in range(0, groups, WINDOW):
        stored = (outputs[:, None] * groups + first + windows[None, :]) * KEPT  # [BLOCK_N, WINDOW]
        stored_exists = output_exists[:, None] & (first + windows < groups)[None, :]
        w = tl.full([BLOCK_N, WINDOW, PADDED], 0.0, values_ptr.dtype.element_ty)
        if KEPT <= 4:  # unrolled, so that the loop over K is pipelined; with more, registers spill and compiling drags
            for kept in tl.static_range(KEPT):
                w = with_kept(w, values_ptr, indices_ptr, stored + kept, stored_exists, places)
        else:
            for kept in range(KEPT):
                w = with_kept(w, values_ptr, indices_ptr, stored + kept, stored_exists, places)
        if PADDED == GROUP_SIZE:
            inputs = first * GROUP_SIZE + steps  # contiguous, and the compiler can see it
            input_exists = inputs < groups * GROUP_SIZE
        else:
            inputs = (first + steps // PADDED) * GROUP_SIZE + steps % PADDED
            input_exists = (first + steps // PADDED < groups) & (steps % PADDED < GROUP_SIZE)
        x = tl.load(
            x_ptr + inputs.to(tl.int64)[:, None] * stride_xk + rows[None, :] * stride_xm,
            mask=input_exists[:, None] & row_exists[None, :],
            other=0.0,
        )  # [BLOCK_K, BLOCK_M]
        acc = tl.dot(tl.reshape(w, [BLOCK_N, BLOCK_K]), x, acc, input_precision="ieee")

    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=output_exists, other=0.0).to(tl.float32)[:, None]
    y = y_ptr + outputs[:, None] * stride_yn + rows[None, :] * stride_ym
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=output_exists[:, None] & row_exists[None, :])


def launch_n_m_triton(
    x: Tensor, y: Tensor, *, values: Tensor, indices: Tensor, bias: Tensor | None, group_size: int
) -> None:
    """Write Y[M, N] = X[M, K] · Wᵀ + bias; the tensors are those of `NMFormat`, on the current device.

    Any n:m is taken; a group size that is not a power of two is padded to one inside the window.
    """
    m, (n, groups, kept) = x.shape[0], values.shape
    block_n = power_of_two_within(n, lowest=16, highest=64)
    column_blocks = -(-n // block_n)
    shape = launch_shape(
        m=m,
        block_n=block_n,
        column_blocks=column_blocks,
        dtype=x.dtype,
        device=x.device,
        largest_m=64 if x.dtype == torch.float32 else 128,  # the window takes the registers of half a tile
    )
    padded = power_of_two_within(group_size, lowest=1, highest=64)
    _n_m_triton_kernel[(-(-m // shape.block_m) * column_blocks,)](
        x,
        values,
        indices,
        y if bias is None else bias,
        y,
        m,
        n,
        groups,
        *x.stride(),
        *y.stride(),
        KEPT=kept,
        GROUP_SIZE=group_size,
        PADDED=padded,
        WINDOW=max(1, shape.block_k // padded),
        HAS_BIAS=bias is not None,
        BLOCK_M=shape.block_m,
        BLOCK_N=shape.block_n,
        RASTER_SWIZZLE=RASTER_SWIZZLE_ROWS,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
