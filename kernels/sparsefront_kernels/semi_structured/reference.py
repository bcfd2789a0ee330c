"""The 2:4 product in plain PyTorch: the truth for tests and the path on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.accumulation import accumulation_dtype
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat


def semi_structured_spmm_reference(x: Tensor, stored: SemiStructuredFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias by rebuilding the dense weight: a truth, not a saving.

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
