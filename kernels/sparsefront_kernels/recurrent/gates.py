"""The gates of an LSTM step as one PyTorch op, in one pass over memory; and the steps of a layer of an LSTM or GRU."""

from collections.abc import Callable

import torch
from torch import Tensor

from sparsefront_kernels import operands

State = tuple[Tensor, ...]  # h and, of an LSTM, c


def lstm_gates_reference(from_input: Tensor, from_state: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The op `lstm_gates` in PyTorch, in the dtypes of its operands."""
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@torch.library.custom_op("sparsefront::lstm_gates", mutates_args=())
def lstm_gates(from_input: Tensor, from_state: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c after a step, computed in float32, or in float64 if they are.

    Args:
        from_input, from_state: [B, 4H] of one dtype, contiguous rows: products of the input and of h with the weights of the
            input, forget, cell and output gate, including biases.
        c: [B, H], in that dtype or, next to products of 16 bits, in float32.
    Returns:
        h in the dtype of the products and c in its own, [B, H], contiguous.
    Raises:
        ValueError: incompatible operands.
    """
    rows, width = c.shape
    for part in (from_input, from_state):
        fits = part.shape == (rows, 4 * width) and part.dtype == from_input.dtype and part.device == c.device
        if not fits or c.dtype not in (part.dtype, torch.float32) or part.stride(1) != 1:
            raise ValueError(
                f"products must be {c.dtype} [{rows}, {4 * width}] on {c.device}, rows contiguous, not {part.dtype} "
                f"{list(part.shape)} of strides {part.stride()} on {part.device}"
            )
    if not _launches(c):
        h, new_c = lstm_gates_reference(*_widen(from_input, from_state, c))
        return h.to(from_input.dtype), new_c.to(c.dtype)
    from sparsefront_kernels.recurrent.triton_steps import launch_lstm_gates

    h, new_c = from_input.new_empty(rows, width), c.new_empty(rows, width)
    with torch.cuda.device_of(c):
        launch_lstm_gates(from_input, from_state, c, h, new_c)
    return h, new_c


@torch.library.custom_op("sparsefront::lstm_gates_backward", mutates_args=())
def lstm_gates_backward(
    from_input: Tensor, from_state: Tensor, c: Tensor, dh: Tensor, dc: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of either product [B, 4H] and of c, from those of the results, in the dtypes of the operands."""
    if _launches(c):
        from sparsefront_kernels.recurrent.triton_steps import launch_lstm_gates_backward

        d_gates, d_c = from_input.new_empty(from_input.shape), c.new_empty(c.shape)
        with torch.cuda.device_of(c):
            launch_lstm_gates_backward(from_input, from_state, c, dh.contiguous(), dc.contiguous(), d_gates, d_c)
        return d_gates, d_c
    wide_input, wide_state, old_c, dh, dc = _widen(from_input, from_state, c, dh, dc)
    i, f, g, o = (wide_input + wide_state).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    t = (f * old_c + i * g).tanh()
    dc = dc + dh * o * (1 - t * t)
    d_gates = [dc * g * i * (1 - i), dc * old_c * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)]
    return torch.cat(d_gates, -1).to(from_input.dtype), (dc * f).to(c.dtype)


def _launches(c: Tensor) -> bool:
    """Whether the Triton kernels run."""
    compact = c.numel() > 0 and c.stride(1) == 1
    return c.is_cuda and operands.TRITON_IS_INSTALLED and compact and c.dtype != torch.float64


def _widen(*parts: Tensor) -> list[Tensor]:
    return [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]


@lstm_gates.register_fake
def _(from_input, from_state, c):
    return from_input.new_empty(c.shape), c.new_empty(c.shape)


@lstm_gates_backward.register_fake
def _(from_input, from_state, c, dh, dc):
    return from_input.new_empty(from_input.shape), c.new_empty(c.shape)


def _gradients(ctx, dh: Tensor, dc: Tensor) -> tuple[Tensor, ...]:
    d_gates, d_c = lstm_gates_backward(*ctx.saved_tensors, dh, dc)
    return d_gates, d_gates, d_c


lstm_gates.register_autograd(_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def gru_gates(from_input: Tensor, from_state: Tensor, h: Tensor) -> State:
    """As `lstm_gates`, of a GRU: products [B, 3H] and h [B, H]."""
    (reset, update, new), (of_reset, of_update, of_new) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    update = (update + of_update).sigmoid()
    new = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return ((1 - update) * new + update * h,)


GATES = {"lstm": lstm_gates, "gru": gru_gates}


def run_steps(
    from_inputs: Tensor,
    state: State,
    product: Callable[[Tensor], Tensor],
    kind: str,
    *,
    reverse: bool,
    real: Tensor | None = None,
    whole: Callable[..., State] | None = None,
) -> tuple[list[Tensor], State]:
    """One layer in one direction, step by step.

    Args:
        from_inputs: [T, B, gates * H]: products of all inputs.
        state: of [B, H].
        product: of h [B, H].
        kind: of `GATES`.
        reverse: from the last step to the first.
        real: bool [T, B], False after the end of a sequence, where states stay; None: all sequences have length T.
        whole: a step including its product and gates: (from_input, h [H, B], c) -> h, h [H, B], c; None: there is none.
    Returns:
        h [B, H] after each step, and the final state.
    """
    turned = None if whole is None else state[0].t().contiguous()
    state = state if whole is None else tuple(part.contiguous() for part in state)
    steps = range(len(from_inputs))
    outputs = [state[0]] * len(steps)
    by_step = from_inputs.unbind()
    for step in reversed(steps) if reverse else steps:
        if whole is None:
            new = GATES[kind](by_step[step], product(state[0]), state[-1])
        else:
            new_h, new_turned, new_c = whole(by_step[step], turned, state[-1])
            turned = new_turned if real is None else torch.where(real[step], new_turned, turned)
            new = new_h, new_c
        if real is not None:
            new = tuple(torch.where(real[step, :, None], *pair) for pair in zip(new, state, strict=True))
        state = new
        outputs[step] = state[0]
    return outputs, state
