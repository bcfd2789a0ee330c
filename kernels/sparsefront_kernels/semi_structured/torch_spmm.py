"""The 2:4 product on sparse tensor cores, through PyTorch's cuSPARSELt calls.

PyTorch wraps these two calls in a tensor subclass, which picks CUTLASS by a global flag (it rejects sm_90) and does not
pass through `torch.compile`. The calls themselves take and give plain tensors, so an op of our own holds them.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.common.device_support import cuda_unsupported_reason
from sparsefront_kernels.common.operands import check_operands, contiguous_at_16_bytes
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import UnsupportedProblem
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.semi_structured.algorithm import padded_rows
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat
from sparsefront_kernels.semi_structured.tuning import ALGORITHMS, CusparseltProblem

WEIGHT_MULTIPLE = 16  # cuSPARSELt's rule for N and K in 16-bit types
MOST_ROWS = 2_097_120  # seen on an H200 with CUDA 13.0, whatever N and K; more are "not supported"
MOST_ELEMENTS = 2**31


@dataclass(frozen=True, eq=False)
class SemiStructuredPacked:
    """A weight in cuSPARSELt's own layout: [N, K] values and metadata in one opaque tensor.

    Its inputs are in `input_order` (int32 [K]; None: ascending), and X has to come in it.
    """

    n: int
    k: int
    packed: Tensor
    input_order: Tensor | None


def pack_for_cusparselt(stored: SemiStructuredFormat) -> SemiStructuredPacked:
    """Compress on the format's CUDA device.

    Raises:
        UnsupportedProblem: the format lives on a CPU, where cuSPARSELt cannot pack.
    """
    if stored.device.type != "cuda":
        raise UnsupportedProblem(f"semi_structured_torch: packs on a CUDA device, the weight is on {stored.device}")
    with torch.cuda.device_of(stored.values):
        return SemiStructuredPacked(*stored.shape, torch._cslt_compress(stored.arranged()), stored.input_order)


def semi_structured_unsupported_reason(stored: SparseFormat, problem: Problem) -> str | None:
    """Why cuSPARSELt, as PyTorch exposes it, does not support a problem, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"cuSPARSELt takes float16 or bfloat16 here, not {problem.dtype}"
    if problem.n % WEIGHT_MULTIPLE or problem.k % WEIGHT_MULTIPLE:
        return f"cuSPARSELt needs N and K in multiples of {WEIGHT_MULTIPLE}, the weight is {[problem.n, problem.k]}"
    if problem.m > MOST_ROWS or problem.m * max(problem.k, problem.n) >= MOST_ELEMENTS:
        return f"cuSPARSELt takes X of {MOST_ROWS} rows, and X and Y of less than 2^31 elements"
    if problem.layout == "feature_to_row" and problem.dtype == torch.float16:
        return "cuSPARSELt's transposed store keeps the processor busy for 0.25 s a call in float16, and is slower than dense"
    if reason := cuda_unsupported_reason(problem, minimum_capability=(8, 0)):
        return reason
    if not torch.backends.cusparselt.is_available():
        return "this PyTorch was built without cuSPARSELt"
    return None


@torch.library.custom_op("sparsefront::semi_structured_spmm", mutates_args=(), device_types="cuda")
def semi_structured_spmm(x: Tensor, packed: Tensor, bias: Tensor | None, n: int, k: int) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias.

    Args:
        x: [M, K], float16 or bfloat16 as `packed`; copied where it is not contiguous and aligned, or M is no multiple of 8.
        packed: from `pack_for_cusparselt`.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N] as the transpose of a row-major [N, M]: cuSPARSELt computes W · Xᵀ, and its own transposed store is
        slow to set up.
    """
    check_operands(x, packed, bias, k=k, n=n)
    y = _transposed_output(x, n)
    if y.numel() == 0:
        return y
    rows = contiguous_at_16_bytes(_padded(x, dim=0))
    bias = bias if bias is None else contiguous_at_16_bytes(bias.to(x.dtype))
    with torch.cuda.device_of(x):
        problem = CusparseltProblem(x.shape[0], k, n, x.dtype, x_feature_major=False, y_row_major=False)
        return _product(packed, rows.t(), bias, problem).t()[: x.shape[0]]


@semi_structured_spmm.register_fake
def _(x, packed, bias, n, k):
    return _transposed_output(x, n)


@torch.library.custom_op("sparsefront::semi_structured_spmm_columns", mutates_args=(), device_types="cuda")
def semi_structured_spmm_columns(x: Tensor, packed: Tensor, bias: Tensor | None, n: int, k: int) -> Tensor:
    """Y[N, M] = W · X[K, M] + bias[:, None], which is what cuSPARSELt computes: nothing is transposed.

    Args:
        x: [K, M], float16 or bfloat16 as `packed`; copied where it is not contiguous and aligned, or M is no multiple of 8.
        packed: from `pack_for_cusparselt`.
        bias: [N], any float dtype, or None.
    Returns:
        [N, M], a row side by side in memory.
    """
    return _product_of_columns(x, packed, bias, n, k, y_row_major=False)


@semi_structured_spmm_columns.register_fake
def _(x, packed, bias, n, k):
    return _columns_output(x, n)


@torch.library.custom_op("sparsefront::semi_structured_spmm_columns_to_rows", mutates_args=(), device_types="cuda")
def semi_structured_spmm_columns_to_rows(x: Tensor, packed: Tensor, bias: Tensor | None, n: int, k: int) -> Tensor:
    """Y[M, N] = X[K, M]ᵀ · Wᵀ + bias, by cuSPARSELt's transposed store: for readers of rows, such as attention.

    Args:
        x: as that of `semi_structured_spmm_columns`.
        packed: from `pack_for_cusparselt`.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], a row side by side in memory.
    """
    return _product_of_columns(x, packed, bias, n, k, y_row_major=True)


@semi_structured_spmm_columns_to_rows.register_fake
def _(x, packed, bias, n, k):
    return _rows_output(x, n)


def _product_of_columns(x: Tensor, packed: Tensor, bias: Tensor | None, n: int, k: int, *, y_row_major: bool) -> Tensor:
    """X [K, M] as the ops take it -> [M, N] where y_row_major, else [N, M]."""
    check_operands(x, packed, bias, k=k, n=n, feature_major=True)
    y = _rows_output(x, n) if y_row_major else _columns_output(x, n)
    if y.numel() == 0:
        return y
    m = x.shape[1]
    columns = contiguous_at_16_bytes(_padded(x, dim=1))
    bias = bias if bias is None else contiguous_at_16_bytes(bias.to(x.dtype))
    with torch.cuda.device_of(x):
        problem = CusparseltProblem(m, k, n, x.dtype, x_feature_major=True, y_row_major=y_row_major)
        product = _product(packed, columns, bias, problem)
    return product[:m] if y_row_major else product[:, :m]


def _padded(x: Tensor, *, dim: int) -> Tensor:
    """X with zeros up to the number of rows that cuSPARSELt takes: X itself where it has them, which `pad` would copy."""
    missing = padded_rows(x.shape[dim]) - x.shape[dim]
    return pad(x, (0, missing) if dim == 1 else (0, 0, 0, missing)) if missing else x


def _product(packed: Tensor, x: Tensor, bias: Tensor | None, problem: CusparseltProblem) -> Tensor:
    """W · X [K, M] + bias[:, None], or its transpose, by the algorithm that was measured to be the fastest."""
    algorithm = ALGORITHMS.launch_for(problem, x.device)
    return torch._cslt_sparse_mm(packed, x, bias=bias, transpose_result=problem.y_row_major, **asdict(algorithm))


def _columns_output(x: Tensor, n: int) -> Tensor:
    """Empty [N, M] with the strides that the product has."""
    m = x.shape[1]
    return x.new_empty(n, padded_rows(m))[:, :m]


def _rows_output(x: Tensor, n: int) -> Tensor:
    """Empty [M, N], row-major."""
    return x.new_empty(x.shape[1], n)


def _transposed_output(x: Tensor, n: int) -> Tensor:
    """Empty [M, N] with the strides that the product has."""
    rows = x.shape[0]
    return x.new_empty(n, padded_rows(rows)).t()[:rows]
