"""The CSR product in plain PyTorch: the reference for tests, and what runs on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.epilogue import accumulation_dtype
from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.csr.torch_spmm import csr_torch


def csr_reference(x: Tensor, stored: CSRFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias by `torch.sparse`, which multiplies by kept weights only.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are widened to float32 and rounded once at the end.
        stored: the weight, on x's device.
        bias: [N] or None.
    Returns:
        [M, N] in x's dtype.
    """
    precision = accumulation_dtype(x.dtype)
    wide = x.to(precision)
    bias = bias if bias is None else bias.to(precision)
    y = csr_torch(wide, stored.values.to(precision), stored.row_pointers, stored.columns, bias, *stored.shape)
    return y.to(x.dtype)
