"""What references share: accumulation dtype, the product with a rebuilt dense weight, and the epilogue.

The epilogue of a kernel: Y = activation(X · Wᵀ + bias) + residual."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sparsefront_kernels.format import SparseFormat


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for 16-bit types, as in tensor cores; float32 and float64 for themselves."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
}
ACTIVATION_CODES = {name: code for code, name in enumerate(ACTIVATIONS)}  # those of cuda/numbers.cuh


def with_epilogue(sums: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None) -> Tensor:
    """activation(sums + bias) + residual in the dtype of the sums: the reference for fused epilogues.

    Args:
        sums: [M, N].
        bias: [N] or None.
        activation: a name of `ACTIVATIONS`.
        residual: [M, N] or None.
    Raises:
        ValueError: an unknown activation; lists the known ones.
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


def rebuilt_product(x: Tensor, stored: SparseFormat, bias: Tensor | None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias with a dense weight: a reference without savings.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are accumulated in float32 and rounded once.
        stored: the weight, on x's device.
        bias: [N] or None.
    Returns:
        [M, N] in x's dtype.
    """
    precision = accumulation_dtype(x.dtype)
    y = x.to(precision) @ stored.to_dense().to(precision).t()
    if bias is not None:
        y = y + bias.to(precision)
    return y.to(x.dtype)
