"""Steps of an LSTM in Triton: the gates, one pass over the products of a step, and a step with the product of the state."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import power_of_two_within, supports_pdl

COLUMNS = 256  # of h per program of the gates
ROWS, FEWER_ROWS = 32, 16  # of h per program of the step; fewer with less shared memory than on Hopper
MOST_KEPT = 512  # inputs per product of the step: a power of two


@triton.jit
def _gates(i, f, g, o, c):
    """h and c; tanh(x) = 2 sigmoid(2x) - 1."""
    c = tl.sigmoid(f) * c + tl.sigmoid(i) * (2.0 * tl.sigmoid(2.0 * g) - 1.0)
    return tl.sigmoid(o) * (2.0 * tl.sigmoid(2.0 * c) - 1.0), c


@triton.jit
def _lstm_gates_kernel(
    from_input_ptr,  # [B, 4H], rows through their stride
    from_state_ptr,  # [B, 4H], rows through their stride
    c_ptr,  # [B, H], rows through their stride
    h_ptr,  # [B, H], contiguous
    new_c_ptr,  # [B, H], contiguous
    width,
    stride_input,
    stride_state,
    stride_c,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < width
    from_input, from_state = from_input_ptr + row * stride_input + column, from_state_ptr + row * stride_state + column
    if PDL:
        tl.extra.cuda.gdc_wait()  # the product may still be running
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read h wait for the end of this one
    i = tl.load(from_input, exists, 0.0).to(tl.float32) + tl.load(from_state, exists, 0.0).to(tl.float32)
    from_input += width
    from_state += width
    f = tl.load(from_input, exists, 0.0).to(tl.float32) + tl.load(from_state, exists, 0.0).to(tl.float32)
    from_input += width
    from_state += width
    g = tl.load(from_input, exists, 0.0).to(tl.float32) + tl.load(from_state, exists, 0.0).to(tl.float32)
    from_input += width
    from_state += width
    o = tl.load(from_input, exists, 0.0).to(tl.float32) + tl.load(from_state, exists, 0.0).to(tl.float32)
    c = tl.load(c_ptr + row * stride_c + column, exists, 0.0).to(tl.float32)
    h, c = _gates(i, f, g, o, c)
    tl.store(h_ptr + row * width + column, h.to(h_ptr.dtype.element_ty), exists)
    tl.store(new_c_ptr + row * width + column, c.to(new_c_ptr.dtype.element_ty), exists)


def launch_lstm_gates(from_input: Tensor, from_state: Tensor, c: Tensor, h: Tensor, new_c: Tensor) -> None:
    """Write h and new_c on the current device; operands as in the op."""
    rows, width = c.shape
    pdl = supports_pdl(c.device)
    _lstm_gates_kernel[(rows, triton.cdiv(width, COLUMNS))](
        *(from_input, from_state, c, h, new_c),
        *(width, from_input.stride(0), from_state.stride(0), c.stride(0)),
        BLOCK=COLUMNS,
        PDL=pdl,
        num_warps=2,
        **({"launch_pdl": True} if pdl else {}),
    )


@triton.jit
def _lstm_gates_backward_kernel(
    from_input_ptr,  # [B, 4H], rows through their stride
    from_state_ptr,  # [B, 4H], rows through their stride
    c_ptr,  # [B, H], rows through their stride
    dh_ptr,  # [B, H], contiguous
    dc_ptr,  # [B, H], contiguous
    d_gates_ptr,  # [B, 4H], contiguous
    d_c_ptr,  # [B, H], contiguous
    width,
    stride_input,
    stride_state,
    stride_c,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < width
    from_input, from_state = from_input_ptr + row * stride_input + column, from_state_ptr + row * stride_state + column
    i = tl.load(from_input, exists, 0.0).to(tl.float32) + tl.load(from_state, exists, 0.0).to(tl.float32)
    f = tl.load(from_input + width, exists, 0.0).to(tl.float32)
    f += tl.load(from_state + width, exists, 0.0).to(tl.float32)
    g = tl.load(from_input + 2 * width, exists, 0.0).to(tl.float32)
    g += tl.load(from_state + 2 * width, exists, 0.0).to(tl.float32)
    o = tl.load(from_input + 3 * width, exists, 0.0).to(tl.float32)
    o += tl.load(from_state + 3 * width, exists, 0.0).to(tl.float32)
    c = tl.load(c_ptr + row * stride_c + column, exists, 0.0).to(tl.float32)
    dh = tl.load(dh_ptr + row * width + column, exists, 0.0).to(tl.float32)
    dc = tl.load(dc_ptr + row * width + column, exists, 0.0).to(tl.float32)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), 2.0 * tl.sigmoid(2.0 * g) - 1.0, tl.sigmoid(o)
    t = 2.0 * tl.sigmoid(2.0 * (f * c + i * g)) - 1.0
    dc += dh * o * (1.0 - t * t)
    d_gates = d_gates_ptr + row * 4 * width + column
    dtype = d_gates_ptr.dtype.element_ty
    tl.store(d_gates, (dc * g * i * (1.0 - i)).to(dtype), exists)
    tl.store(d_gates + width, (dc * c * f * (1.0 - f)).to(dtype), exists)
    tl.store(d_gates + 2 * width, (dc * i * (1.0 - g * g)).to(dtype), exists)
    tl.store(d_gates + 3 * width, (dh * t * o * (1.0 - o)).to(dtype), exists)
    tl.store(d_c_ptr + row * width + column, (dc * f).to(d_c_ptr.dtype.element_ty), exists)


def launch_lstm_gates_backward(
    from_input: Tensor, from_state: Tensor, c: Tensor, dh: Tensor, dc: Tensor, d_gates: Tensor, d_c: Tensor
) -> None:
    """Write d_gates and d_c on the current device; operands as in the op, dh and dc contiguous."""
    rows, width = c.shape
    _lstm_gates_backward_kernel[(rows, triton.cdiv(width, COLUMNS))](
        *(from_input, from_state, c, dh, dc, d_gates, d_c),
        *(width, from_input.stride(0), from_state.stride(0), c.stride(0)),
        BLOCK=COLUMNS,
        num_warps=2,
    )


@triton.jit
def _lstm_step_kernel(
    from_input_ptr,  # [B, 4H], rows through their stride
    state_ptr,  # [H, B], contiguous
    c_ptr,  # [B, H], contiguous
    panels_ptr,  # [H / UNITS, 4 * UNITS, kept]
    lists_ptr,  # [H / UNITS, kept]
    bias_ptr,  # [4H]
    h_ptr,  # [B, H], contiguous
    new_state_ptr,  # [H, B], contiguous
    new_c_ptr,  # [B, H], contiguous
    rows,
    width,
    kept,
    stride_input,
    HAS_BIAS: tl.constexpr,
    UNITS: tl.constexpr,
    PRODUCTS: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK_B: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    unit = block * UNITS + tl.arange(0, UNITS)
    line = tl.arange(0, 4 * UNITS)  # in the panel: gate by gate
    output = line // UNITS * width + block * UNITS + line % UNITS  # of 4H
    exists = (row < rows)[None, :]
    # weights do not change: read them while the previous step still runs
    place = tl.arange(0, KEPT)
    inputs = tl.load(lists_ptr + block * kept + place, place < kept, -1)
    panel = panels_ptr + (block * 4 * UNITS + line)[:, None] * kept
    weight = tl.load(panel + place[None, :], (place < kept)[None, :], 0.0)
    bias = tl.load(bias_ptr + output).to(tl.float32) if HAS_BIAS else tl.zeros((4 * UNITS,), tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()  # kernels that read the state wait for the end of this one
    # all loads before the product, so that their latencies overlap
    input_part = tl.load(from_input_ptr + row[None, :] * stride_input + output[:, None], exists, 0.0)
    c_place = row[None, :] * width + unit[:, None]  # [UNITS, BLOCK_B]
    c = tl.load(c_ptr + c_place, exists, 0.0)
    state = tl.load(state_ptr + inputs[:, None] * rows + row[None, :], (inputs >= 0)[:, None] & exists, 0.0)
    sums = tl.dot(weight, state)
    for product in tl.static_range(1, PRODUCTS):
        place = product * KEPT + tl.arange(0, KEPT)
        inputs = tl.load(lists_ptr + block * kept + place, place < kept, -1)
        weight = tl.load(panel + place[None, :], (place < kept)[None, :], 0.0)
        state = tl.load(state_ptr + inputs[:, None] * rows + row[None, :], (inputs >= 0)[:, None] & exists, 0.0)
        sums += tl.dot(weight, state)
    sums += input_part.to(tl.float32) + bias[:, None]
    # [gates, UNITS, BLOCK_B]: input 0, forget 1, cell 2, output 3
    by_gate = tl.permute(tl.reshape(sums, (2, 2, UNITS, BLOCK_B)), (2, 3, 0, 1))
    even, odd = tl.split(by_gate)  # input and cell, forget and output
    i, g = tl.split(even)
    f, o = tl.split(odd)
    h, c = _gates(i, f, g, o, c.to(tl.float32))
    h = h.to(h_ptr.dtype.element_ty)
    tl.store(new_state_ptr + unit[:, None] * rows + row[None, :], h, exists)
    tl.store(h_ptr + c_place, h, exists)
    tl.store(new_c_ptr + c_place, c.to(new_c_ptr.dtype.element_ty), exists)


def launch_lstm_step(
    from_input: Tensor,
    state: Tensor,
    c: Tensor,
    panels: Tensor,
    lists: Tensor,
    bias: Tensor | None,
    h: Tensor,
    new_state: Tensor,
    new_c: Tensor,
) -> None:
    """Write h, new_state and new_c on the current device; operands as in the op."""
    (rows, width), (blocks, lines, kept_count) = c.shape, panels.shape
    together, pdl = power_of_two_within(kept_count, lowest=16, highest=MOST_KEPT), supports_pdl(c.device)
    block_rows = ROWS if pdl else FEWER_ROWS
    _lstm_step_kernel[(blocks, triton.cdiv(rows, block_rows))](
        *(from_input, state, c, panels, lists, h if bias is None else bias, h, new_state, new_c),
        *(rows, width, kept_count, from_input.stride(0)),
        HAS_BIAS=bias is not None,
        UNITS=lines // 4,
        PRODUCTS=triton.cdiv(kept_count, together),
        KEPT=together,
        BLOCK_B=block_rows,
        PDL=pdl,
        num_warps=8,
        **({"launch_pdl": True} if pdl else {}),
    )
