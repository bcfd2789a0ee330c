"""The gates of an LSTM in Triton: one pass over the products of a step."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.common.launch import supports_pdl

COLUMNS = 256  # of h, of a program


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
        tl.extra.cuda.gdc_wait()  # the product may not have ended
        tl.extra.cuda.gdc_launch_dependents()  # who reads h waits for the end of this kernel
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
    c = tl.sigmoid(f) * c + tl.sigmoid(i) * (2.0 * tl.sigmoid(2.0 * g) - 1.0)  # tanh(g) = 2 sigmoid(2g) - 1
    h = tl.sigmoid(o) * (2.0 * tl.sigmoid(2.0 * c) - 1.0)
    tl.store(h_ptr + row * width + column, h.to(h_ptr.dtype.element_ty), exists)
    tl.store(new_c_ptr + row * width + column, c.to(new_c_ptr.dtype.element_ty), exists)


def launch_lstm_gates(from_input: Tensor, from_state: Tensor, c: Tensor, h: Tensor, new_c: Tensor) -> None:
    """Write h and new_c on the current device; operands as those of the op."""
    rows, width = c.shape
    pdl = supports_pdl(c.device)
    _lstm_gates_kernel[(rows, triton.cdiv(width, COLUMNS))](
        from_input,
        from_state,
        c,
        h,
        new_c,
        width,
        from_input.stride(0),
        from_state.stride(0),
        c.stride(0),
        BLOCK=COLUMNS,
        PDL=pdl,
        num_warps=2,
        **({"launch_pdl": True} if pdl else {}),
    )
