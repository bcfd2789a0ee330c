"""The dense product: PyTorch's own linear, which is both the reference and the fast path."""

from torch import Tensor
from torch.nn.functional import linear

from sparsefront_kernels.dense.format import DenseFormat


def dense_linear(x: Tensor, stored: DenseFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias on any device, in x's dtype; the library's own accumulation applies."""
    return linear(x, stored.values, bias if bias is None else bias.to(x.dtype))
