"""What a kernel may do to its sums before they are written: Y = activation(X · Wᵀ + bias) + residual."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
}
ACTIVATION_CODES = {name: code for code, name in enumerate(ACTIVATIONS)}  # those of cuda/epilogue_math.cuh


def with_epilogue(sums: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None) -> Tensor:
    """activation(sums + bias) + residual in the precision of the sums: the reference for kernels that fuse it.

    Args:
        sums: [M, N].
        bias: [N] or None.
        activation: a name of `ACTIVATIONS`.
        residual: [M, N] or None.
    Raises:
        ValueError: no such activation; the message lists those there are.
    """
    check_activation(activation)
    if bias is not None:
        sums = sums + bias.to(sums.dtype)
    y = ACTIVATIONS[activation](sums)
    return y if residual is None else y + residual.to(sums.dtype)


def check_activation(activation: str) -> None:
    """Raise ValueError unless the activation is one of `ACTIVATIONS`."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
