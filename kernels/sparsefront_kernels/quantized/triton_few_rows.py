"""Products of few rows of X in 16 bits with int8 weights, in Triton: a program owns 16 or 32 outputs of a tile."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import num_sms, power_of_two_within, supports_pdl
from sparsefront_kernels.triton_device import activated

OUTPUTS = (32, 16)  # of a program; the smaller where the grid would leave SMs idle
INPUTS, WARPS, STAGES = 256, 4, 4  # inputs of a k-block, warps, pipeline stages
INPUTS_OF_ONE_ROW, WARPS_OF_ONE_ROW = 512, 8
MOST_ROWS = 64  # of a program


@triton.jit
def _few_rows_kernel(
    x_ptr,  # [M, K], rows through their stride
    values_ptr,  # per tile [WIDTH, kept inputs]
    inputs_ptr,  # kept inputs of all tiles; -1 where a tile is padded
    offsets_ptr,  # [tiles + 1]
    outputs_ptr,  # [tiles, WIDTH]; -1 where a tile is padded
    scales_ptr,  # [N]
    bias_ptr,  # [N]
    residual_ptr,  # [M, N], contiguous
    y_ptr,  # [M, N], contiguous
    m,
    n,
    stride_x,
    WIDTH: tl.constexpr,
    GATHERS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(0) // (WIDTH // BLOCK_N)
    line = tl.program_id(0) % (WIDTH // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    first, end = tl.load(offsets_ptr + tile), tl.load(offsets_ptr + tile + 1)
    first, count = tl.multiple_of(first, 16), tl.multiple_of((end - first).to(tl.int32), 16)
    output = tl.load(outputs_ptr + tile * WIDTH + line)
    scale = tl.load(scales_ptr + output, output >= 0, 0.0)
    bias = tl.load(bias_ptr + output, output >= 0, 0.0).to(tl.float32) if HAS_BIAS else tl.zeros([BLOCK_N], tl.float32)
    panel = values_ptr + first * WIDTH + line.to(tl.int64)[:, None] * count
    rows = x_ptr + row.to(tl.int64)[None, :] * stride_x
    if PDL:
        tl.extra.cuda.gdc_wait()  # X may still be written
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read Y wait for the end of this one
    sums = tl.zeros([BLOCK_N, BLOCK_K if BLOCK_M == 1 else BLOCK_M], tl.float32)
    for start in range(0, count, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        weight = tl.load(panel + place[None, :], (place < count)[None, :], 0)
        column = (
            tl.load(inputs_ptr + first + place, place < count, -1) if GATHERS else tl.where(place < count, place, -1)
        )
        if BLOCK_M == 1:  # on the CUDA cores, without the way through shared memory
            x = tl.load(x_ptr + column, column >= 0, 0.0).to(tl.float32)
            sums += weight.to(tl.float32) * x[None, :]
        else:
            x = tl.load(rows + column[:, None], (column >= 0)[:, None] & (row < m)[None, :], 0.0)  # [BLOCK_K, BLOCK_M]
            sums = tl.dot(weight.to(x.dtype), x, sums)
    if BLOCK_M == 1:
        sums = tl.sum(sums, 1)[:, None]
    y = sums * scale[:, None] + bias[:, None]
    y = activated(y, ACTIVATION, True)
    place = row.to(tl.int64)[None, :] * n + output[:, None]
    exists = (output >= 0)[:, None] & (row < m)[None, :]
    if HAS_RESIDUAL:
        y += tl.load(residual_ptr + place, exists, 0.0).to(tl.float32)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), exists)


def launch_few_rows(
    x: Tensor,
    values: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    outputs: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    y: Tensor,
) -> None:
    """Write Y on the current device; operands as in the op, X with contiguous rows."""
    (m, n), (tiles, width) = y.shape, outputs.shape
    block_m = 1 if m == 1 else power_of_two_within(m, lowest=16, highest=MOST_ROWS)
    block_n = OUTPUTS[0] if tiles * width >= 2 * OUTPUTS[0] * num_sms(x.device) else OUTPUTS[1]
    pdl = supports_pdl(x.device)
    _few_rows_kernel[(tiles * (width // block_n), triton.cdiv(m, block_m))](
        *(x, values, inputs if inputs.numel() else offsets, offsets, outputs, scales),
        *(scales if bias is None else bias, x if residual is None else residual, y),
        *(m, n, x.stride(0)),
        WIDTH=width,
        GATHERS=inputs.numel() > 0,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=activation,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=INPUTS_OF_ONE_ROW if m == 1 else INPUTS,
        PDL=pdl,
        num_warps=WARPS_OF_ONE_ROW if m == 1 else WARPS,
        num_stages=STAGES,
        **({"launch_pdl": True} if pdl else {}),
    )
