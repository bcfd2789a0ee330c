"""The steps of a layer of an LSTM or GRU, and as ops whose programs take any length: torch.export would write out each step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.pointwise import contiguous_transpose
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.recurrent.gates import lstm_gates
from sparsefront_kernels.recurrent.step import NAME, SparseGates, lstm_step
from sparsefront_kernels.registry import labeled
from sparsefront_kernels.sparse_layer import SparseLayer
from sparsefront_kernels.stored_product import stored_product

State = tuple[Tensor, ...]  # h and, of an LSTM, c


def gru_gates(from_input: Tensor, from_state: Tensor, h: Tensor) -> State:
    """As `lstm_gates`, of a GRU: products [B, 3H] and h [B, H]."""
    (reset, update, new), (of_reset, of_update, of_new) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    update = (update + of_update).sigmoid()
    new = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return ((1 - update) * new + update * h,)


GATES = {"lstm": lstm_gates, "gru": gru_gates}
OPERATORS: dict[str, Any] = {"lstm": torch.lstm, "gru": torch.gru}


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


@custom_op(
    "recurrent_steps",
    "(Tensor from_inputs, Tensor[] state, Tensor[] parts, Tensor? bias, str stored, str kernel, str kind, bool reverse)"
    " -> Tensor[]",
)
def recurrent_steps(
    from_inputs: Tensor,
    state: Sequence[Tensor],
    parts: Sequence[Tensor],
    bias: Tensor | None,
    stored: str,
    kernel: str,
    kind: str,
    reverse: bool,
) -> list[Tensor]:
    """`run_steps` of a stored weight: h of all steps [T, B, H], and the final state.

    Args:
        parts, bias, stored, kernel: as in `stored_product`; or the panels and lists of a `StepWeight` with `lstm_step`; or a
            dense weight [gates * H, H] without a kernel.
    """
    whole: Callable[..., State] | None = None
    layout = labeled(kernel)[1] if stored else None

    def product(h: Tensor) -> Tensor:
        """As `SparseLayer.product`."""
        if not stored:
            return F.linear(h, parts[0], bias)
        h = contiguous_transpose(h) if layout in X_FEATURE_MAJOR else h
        y = stored_product(h, parts, bias, None, "none", stored, kernel, False)
        return contiguous_transpose(y) if layout in Y_FEATURE_MAJOR else y

    if kernel == NAME:

        def whole(from_input: Tensor, h: Tensor, c: Tensor) -> State:
            result: State = lstm_step(from_input, h, c, *parts, bias)
            return result

    outputs, last = run_steps(from_inputs, tuple(state), product, kind, reverse=reverse, whole=whole)
    return [torch.stack(outputs), *(part.contiguous() for part in last)]


@recurrent_steps.register_fake
def _(from_inputs, state, parts, bias, stored, kernel, kind, reverse):
    outputs = from_inputs.new_empty(*from_inputs.shape[:2], state[0].shape[1])
    return [outputs, *(part.new_empty(part.shape) for part in state)]


def weight_of_steps(product: nn.Module) -> tuple[list[Tensor], Tensor | None, str, str]:
    """`parts`, `bias`, `stored` and `kernel` of a layer for `recurrent_steps`, inside `store_products`."""
    if isinstance(product, SparseGates):
        packed = product._operand
        return [packed.panels, packed.lists], product.bias, "", NAME
    if isinstance(product, SparseLayer):
        call: Any = product._entry.product
        return call.parts, product.bias, call.stored, call.kernel
    return [product.weight], product.bias, "", ""  # type: ignore[list-item, return-value]  # of a Linear


@custom_op(
    "recurrent_operator",
    "(Tensor x, Tensor[] state, Tensor[] weights, bool bias, int layers, bool bidirectional, bool batch_first, str kind)"
    " -> Tensor[]",
)
def recurrent_operator(
    x: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    kind: str,
) -> list[Tensor]:
    """PyTorch's own operator of a dense LSTM or GRU in eval mode: its outputs, and the final state, contiguous."""
    first = list(state) if kind == "lstm" else state[0]
    results = OPERATORS[kind](x, first, list(weights), bias, layers, 0.0, False, bidirectional, batch_first)
    return [part.contiguous() for part in results]


@recurrent_operator.register_fake
def _(x, state, weights, bias, layers, bidirectional, batch_first, kind):
    outputs = x.new_empty(*x.shape[:2], state[0].shape[2] * (2 if bidirectional else 1))
    return [outputs, *(part.new_empty(part.shape) for part in state)]
