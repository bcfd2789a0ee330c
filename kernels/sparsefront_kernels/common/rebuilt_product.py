"""The product through the rebuilt dense weight, for references whose structure gives PyTorch nothing to save."""

from torch import Tensor

from sparsefront_kernels.common.accumulation import accumulation_dtype
from sparsefront_kernels.format import SparseFormat


def rebuilt_product(x: Tensor, stored: SparseFormat, bias: Tensor | None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias: a reference, which saves nothing.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are added up in float32 and rounded once.
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
