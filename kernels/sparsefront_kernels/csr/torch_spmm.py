"""The CSR product with `torch.sparse`: `csr_torch` uses cuSPARSE; on a CPU the reference uses MKL or PyTorch's loops."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.device_support import cuda_unsupported_reason
from sparsefront_kernels.epilogue import accumulation_dtype
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.operands import check_operands
from sparsefront_kernels.problem import Problem

MOST_ROWS = 65_535 * 128  # observed on an H200 with CUDA 13.0 for any N, K and dtype; beyond it Y silently stays zero
MOST_ELEMENTS = 2**31


@dataclass(frozen=True, eq=False)
class CSRTorchWeight:
    """The tensors of `CSRFormat`.

    Args:
        n, k: outputs and inputs of the weight.
    """

    n: int
    k: int
    values: Tensor
    row_pointers: Tensor
    columns: Tensor


def pack_for_torch(stored: CSRFormat) -> CSRTorchWeight:
    """Copies nothing."""
    return CSRTorchWeight(*stored.shape, stored.values, stored.row_pointers, stored.columns)


def csr_torch(x: Tensor, packed: CSRTorchWeight, bias: Tensor | None) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias.

    bfloat16 is multiplied in float32: cuSPARSE's own bfloat16 sums are off by more than 5e-3 of the product.

    Args:
        x: [M, K], the weight's dtype, any strides.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N] as the transpose of a row-major [N, M]: the library computes W · Xᵀ.
    Raises:
        ValueError: incompatible operands.
    """
    check_operands(x, packed.values, bias, k=packed.k, n=packed.n)
    rows = x.shape[0]
    if rows == 0 or packed.values.numel() == 0:
        y = x.new_zeros(packed.n, rows)
    else:
        with warnings.catch_warnings(), torch.cuda.device_of(x):
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
            within = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
            values, shape = packed.values.to(within), (packed.n, packed.k)
            weight = torch.sparse_csr_tensor(packed.row_pointers, packed.columns, values, shape, check_invariants=False)
            y = torch.mm(weight, x.t().to(within))
    if bias is not None:
        y += bias[:, None].to(y.dtype)
    return y.to(x.dtype).t()


def csr_reference(x: Tensor, stored: CSRFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias with `torch.sparse`, which multiplies only kept weights.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are converted to float32 and rounded once at the end.
        stored: the weight, on x's device.
        bias: [N] or None.
    Returns:
        [M, N] in x's dtype.
    """
    precision = accumulation_dtype(x.dtype)
    bias = bias if bias is None else bias.to(precision)
    widened = CSRTorchWeight(*stored.shape, stored.values.to(precision), stored.row_pointers, stored.columns)
    return TORCH.run(x.to(precision), widened, bias).to(x.dtype)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why cuSPARSE, as PyTorch exposes it, does not support a problem, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    return cuda_unsupported_reason(problem, minimum_capability=(7, 0))


REFERENCE = KernelEntry(name="csr_reference", family="csr", product=csr_reference, is_reference=True)
TORCH = kernel_entry(
    "csr_torch",
    "csr",
    weight=CSRTorchWeight,
    run=csr_torch,
    transposed_y=True,
    pack=pack_for_torch,
    unsupported=_unsupported,
    most_rows=lambda packed: min(MOST_ROWS, (MOST_ELEMENTS - 1) // max(packed.n, packed.k)),
)
