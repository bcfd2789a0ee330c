"""Device code of the gathered kernels in Triton: the product, and rows of Y from computed outputs."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import (
    RASTER_SWIZZLE_ROWS,
    LaunchShape,
    launch_shape,
    power_of_two_within,
    supports_pdl,
)
from sparsefront_kernels.operands import Epilogue
from sparsefront_kernels.triton_device import activated, swizzled_tile

REGISTERS = 65_536  # per SM
BLOCK = 64  # side of a transposed tile: 128-byte reads and writes in 16-bit types


@triton.jit
def _gathered_triton_kernel(
    x_ptr,  # [m, K] through its strides
    values_ptr,  # [kept, TILE]
    kept_ptr,  # int32 [kept]
    offsets_ptr,  # int64 [tiles + 1]
    order_ptr,  # int32 [tiles]
    outputs_ptr,  # int32 [tiles, TILE]
    bias_ptr,  # [n]
    residual_ptr,  # [m, n] through its strides
    y_ptr,  # [m, n] through its strides
    m,
    n,
    tiles,
    stride_xm,
    stride_xk,
    stride_rm,
    stride_rn,
    stride_ym,
    stride_yn,
    TILE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    CONSECUTIVE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER_SWIZZLE: tl.constexpr,
):
    PARTS: tl.constexpr = (TILE + BLOCK_N - 1) // BLOCK_N  # programs that share a tile wider than BLOCK_N
    row_block, column_block = swizzled_tile(
        tl.program_id(0), (m + BLOCK_M - 1) // BLOCK_M, tiles * PARTS, RASTER_SWIZZLE
    )
    tile = tl.load(order_ptr + column_block // PARTS).to(tl.int64)
    columns = (column_block % PARTS) * BLOCK_N + tl.arange(0, BLOCK_N)  # within the tile
    rows = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # int64: X and Y may pass 2^31 elements
    row_exists = rows < m
    start = tl.load(offsets_ptr + tile)
    count = (tl.load(offsets_ptr + tile + 1) - start).to(tl.int32)

    steps = tl.arange(0, BLOCK_K)
    input_places = kept_ptr + start + steps
    panel = values_ptr + (start + steps)[:, None] * TILE + columns[None, :]
    x_rows = x_ptr + rows * stride_xm
    acc = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for done in range(0, count, BLOCK_K):
        exists = steps < count - done
        inputs = tl.load(input_places, mask=exists, other=0).to(tl.int64)
        # mask both operands: beyond the last kept input there may be NaN, and 0 · NaN is NaN
        x = tl.load(
            x_rows[:, None] + inputs[None, :] * stride_xk, mask=row_exists[:, None] & exists[None, :], other=0.0
        )  # [BLOCK_M, BLOCK_K]
        if TILE % BLOCK_N == 0:  # no mask along the columns: the load stays wide
            w = tl.load(panel, mask=exists[:, None], other=0.0)  # [BLOCK_K, BLOCK_N]
        else:
            w = tl.load(panel, mask=exists[:, None] & (columns < TILE)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        input_places += BLOCK_K
        panel += BLOCK_K * TILE

    if CONSECUTIVE:
        outputs = tile * TILE + columns
        owned = (columns < TILE) & (outputs < n)
    else:
        outputs = tl.load(outputs_ptr + tile * TILE + columns, mask=columns < TILE, other=-1).to(tl.int64)
        owned = outputs >= 0
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=owned, other=0.0).to(tl.float32)[None, :]
    acc = activated(acc, ACTIVATION)
    exists = row_exists[:, None] & owned[None, :]
    if HAS_RESIDUAL:
        residual = residual_ptr + rows[:, None] * stride_rm + outputs[None, :] * stride_rn
        acc += tl.load(residual, mask=exists, other=0.0).to(tl.float32)
    y = y_ptr + rows[:, None] * stride_ym + outputs[None, :] * stride_yn
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=exists)


def launch_gathered_triton(
    x: Tensor, y: Tensor, packed: Any, epilogue: Epilogue, tf32: LaunchShape | None = None
) -> None:
    """Write Y[M, N] = activation(X[M, K] · Wᵀ + bias) + residual[M, N] on the current device.

    X, the residual and Y are accessed through their strides: feature-major activations are passed as transposed views, in which
    a kept input is a contiguous run of X.

    Args:
        packed: a `triton.TritonPackedWeight`.
        tf32: the launch that multiplies float32 operands in TF32; None: exact products.
    """
    (m, _), n, (tiles, tile) = x.shape, y.shape[1], packed.outputs.shape
    block_n = power_of_two_within(tile, lowest=16, highest=128)
    column_blocks = tiles * -(-tile // block_n)
    shape = tf32 or launch_shape(m=m, block_n=block_n, column_blocks=column_blocks, dtype=x.dtype, device=x.device)
    bias, activation = epilogue.bias, epilogue.activation
    residual = y if epilogue.residual is None else epilogue.residual
    # two programs must fit into the registers of a multiprocessor, also with an epilogue
    more_than_sums = activation != "none" or epilogue.residual is not None
    _gathered_triton_kernel[(-(-m // shape.block_m) * column_blocks,)](
        *(x, packed.values, packed.kept_inputs, packed.tile_offsets, packed.order, packed.outputs),
        *(y if bias is None else bias, residual, y),
        *(m, n, tiles),
        *(*x.stride(), *residual.stride(), *y.stride()),
        TILE=tile,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=epilogue.residual is not None,
        ACTIVATION=activation,
        CONSECUTIVE=packed.consecutive,
        PRECISION="ieee" if tf32 is None else "tf32",
        BLOCK_M=shape.block_m,
        BLOCK_N=shape.block_n,
        BLOCK_K=shape.block_k,
        RASTER_SWIZZLE=RASTER_SWIZZLE_ROWS,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        **({"maxnreg": REGISTERS // (2 * 32 * shape.num_warps)} if shape.num_warps == 8 and more_than_sums else {}),
    )


@triton.jit
def _expand_kernel(
    sums_ptr,  # [computed outputs, M]
    index_ptr,  # [n]: index of each output among the computed ones, or -1
    bias_ptr,  # [n]
    residual_ptr,  # [m, n]
    y_ptr,  # [m, n]
    n,
    m,
    sums_stride,
    residual_stride,
    y_stride,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK)
    output = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + output, mask=output < n, other=-1).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()  # the previous kernel may still be running
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read y wait for the end of this one
    computed = (index >= 0)[:, None] & (row < m)[None, :]
    v = tl.load(sums_ptr + index[:, None] * sums_stride + row[None, :], mask=computed, other=0.0).to(tl.float32)
    if HAS_BIAS:
        v += tl.load(bias_ptr + output, mask=output < n, other=0.0).to(tl.float32)[:, None]
    v = tl.trans(activated(v, ACTIVATION))
    exists = (row < m)[:, None] & (output < n)[None, :]
    if HAS_RESIDUAL:
        v += tl.load(residual_ptr + row[:, None] * residual_stride + output[None, :], mask=exists, other=0.0).to(
            tl.float32
        )
    tl.store(y_ptr + row[:, None] * y_stride + output[None, :], v.to(y_ptr.dtype.element_ty), mask=exists)


def expand_rows(
    sums: Tensor, index: Tensor, y: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None
) -> None:
    """Write rows y = activation(sums + bias) + residual, with zero sums for outputs that are not computed.

    Args:
        sums: [computed outputs, at least M], rows contiguous.
        index: int32 [N], row of each output in `sums`, or -1.
        y, residual: [M, N], rows contiguous; residual may be None.
        bias: [N] or None.
        activation: a name of `epilogue.ACTIVATIONS`.
    """
    m, n = y.shape
    pdl = supports_pdl(y.device)
    _expand_kernel[(triton.cdiv(n, BLOCK) * triton.cdiv(m, BLOCK),)](
        *(sums, index, y if bias is None else bias, y if residual is None else residual, y),
        *(n, m, sums.stride(0), 0 if residual is None else residual.stride(0), y.stride(0)),
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=activation,
        BLOCK=BLOCK,
        PDL=pdl,
        num_warps=4,
        **({"launch_pdl": True} if pdl else {}),
    )
