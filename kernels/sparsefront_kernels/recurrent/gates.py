"""The gates of an LSTM step as one PyTorch op: one pass over memory."""

import torch
from torch import Tensor

from sparsefront_kernels import operands


def lstm_gates_reference(from_input: Tensor, from_state: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The op `lstm_gates` in PyTorch, in the dtypes of its operands."""
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@torch.library.custom_op("sparsefront::lstm_gates", mutates_args=())
def lstm_gates(from_input: Tensor, from_state: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c after a step, computed in float32.

    Args:
        from_input, from_state: [B, 4H] of one dtype, float16, bfloat16 or float32, contiguous rows: products of the input and
            of h with the weights of the input, forget, cell and output gate, including biases.
        c: [B, H], likewise.
    Returns:
        h and c, [B, H], contiguous.
    Raises:
        ValueError: incompatible operands.
    """
    rows, width = c.shape
    for part in (from_input, from_state):
        if part.shape != (rows, 4 * width) or part.dtype != c.dtype or part.device != c.device or part.stride(1) != 1:
            raise ValueError(
                f"products must be {c.dtype} [{rows}, {4 * width}] on {c.device}, rows contiguous, not {part.dtype} "
                f"{list(part.shape)} of strides {part.stride()} on {part.device}"
            )
    if not c.is_cuda or not operands.TRITON_IS_INSTALLED or c.numel() == 0 or c.stride(1) != 1:
        h, c = lstm_gates_reference(from_input.float(), from_state.float(), c.float())
        return h.to(from_input.dtype), c.to(from_input.dtype)
    from sparsefront_kernels.recurrent.triton_steps import launch_lstm_gates

    h, new_c = c.new_empty(rows, width), c.new_empty(rows, width)
    with torch.cuda.device_of(c):
        launch_lstm_gates(from_input, from_state, c, h, new_c)
    return h, new_c


@lstm_gates.register_fake
def _(from_input, from_state, c):
    return c.new_empty(c.shape), c.new_empty(c.shape)


def _gradients(ctx, dh: Tensor, dc: Tensor) -> tuple[Tensor, ...]:
    """Gradients by recomputing with the reference."""
    leaves = [part.detach().requires_grad_() for part in ctx.saved_tensors]
    with torch.enable_grad():
        outputs = lstm_gates_reference(*leaves)
    return torch.autograd.grad(outputs, leaves, (dh, dc))


lstm_gates.register_autograd(_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
