"""The n:m product in plain PyTorch: the truth for tests and the path on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.accumulation import accumulation_dtype
from sparsefront_kernels.n_m.format import NMFormat


def n_m_spmm_reference(x: Tensor, stored: NMFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias by rebuilding the dense weight: a truth, not a saving.

    Every output keeps its own inputs, so PyTorch has no product that would use fewer of them.

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
