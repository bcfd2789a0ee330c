"""The CSR product through `torch.sparse`: cuSPARSE on a GPU, MKL or PyTorch's own loops on a CPU."""

import warnings

import torch
from torch import Tensor

from sparsefront_kernels.common.device_support import cuda_unsupported_reason
from sparsefront_kernels.common.operands import check_operands
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import Problem

MOST_ROWS = 65_535 * 128  # seen on an H200 with CUDA 13.0, whatever N, K and dtype; one more, and Y stays zero, unsaid
MOST_ELEMENTS = 2**31


def csr_unsupported_reason(stored: SparseFormat, problem: Problem) -> str | None:
    """Why cuSPARSE, as PyTorch exposes it, does not support a problem, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    if problem.m > MOST_ROWS or problem.m * max(problem.k, problem.n) >= MOST_ELEMENTS:
        return f"cuSPARSE takes X of {MOST_ROWS} rows, and X and Y of less than 2^31 elements; beyond, Y stays zero"
    return cuda_unsupported_reason(problem, minimum_capability=(7, 0))


@torch.library.custom_op("sparsefront::csr_torch", mutates_args=())
def csr_torch(
    x: Tensor, values: Tensor, row_pointers: Tensor, columns: Tensor, bias: Tensor | None, n: int, k: int
) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias with the tensors of `CSRFormat`.

    An op of its own, because `torch.compile` does not trace sparse tensors. bfloat16 is multiplied in float32: cuSPARSE's
    own bfloat16 sums err by more than 5e-3 of the product.

    Args:
        x: [M, K], the dtype of `values`, any strides.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N] as the transpose of a row-major [N, M]: the library computes W · Xᵀ.
    Raises:
        ValueError: operands that do not fit together.
    """
    check_operands(x, values, bias, k=k, n=n)
    rows = x.shape[0]
    if rows == 0 or values.numel() == 0:
        y = x.new_zeros(n, rows)
    else:
        with warnings.catch_warnings(), torch.cuda.device_of(x):
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
            within = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
            weight = torch.sparse_csr_tensor(row_pointers, columns, values.to(within), (n, k), check_invariants=False)
            y = torch.mm(weight, x.t().to(within))
    if bias is not None:
        y += bias[:, None].to(y.dtype)
    return y.to(x.dtype).t()


@csr_torch.register_fake
def _(x, values, row_pointers, columns, bias, n, k):
    return x.new_empty(n, x.shape[0]).t()
