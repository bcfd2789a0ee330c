"""All steps of a layer of an LSTM or GRU as ops, whose programs take any length: torch.export would write out each step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.pointwise import contiguous_transpose
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from sparsefront_kernels.recurrent.gates import State, run_steps
from sparsefront_kernels.recurrent.step import NAME, SparseGates, lstm_step
from sparsefront_kernels.registry import labeled
from sparsefront_kernels.sparse_layer import SparseLayer
from sparsefront_kernels.stored_product import stored_product

OPERATORS: dict[str, Any] = {"lstm": torch.lstm, "gru": torch.gru}


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
