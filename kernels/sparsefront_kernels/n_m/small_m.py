"""`n_m_small_m`: products with up to 64 rows of X on CUDA cores; a thread owns an output (csrc/n_m_small_m.cu)."""

from dataclasses import dataclass

from torch import Tensor

from sparsefront_kernels.cuda.launch import TYPE_CODES
from sparsefront_kernels.cuda.thread_per_output import (
    MOST_ROWS,
    ThreadPerOutputProblem,
    packed_chunks,
    rows_unsupported_reason,
    thread_per_output_product,
    tuned_launches,
)
from sparsefront_kernels.device_support import hopper_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.problem import Problem

KERNEL = "n_m_small_m"
VERSION = 1  # raised when a change of the kernel makes old measurements useless
INDEX_BITS = (2, 4, 5, 6)


@dataclass(frozen=True, eq=False)
class NMSmallMWeight:
    """Chunks of kept weights, as the kernels for few rows read them.

    Args:
        n, k: outputs and inputs of the weight.
        kept, group_size: n and m of the pattern.
        bits: of an index within a group.
        values: [strips of 32 outputs, chunks, kept weights of a chunk].
        indices: int32 [strips, chunks, words].
        input_order: int32 [K], as in `NMFormat`, or None.
    """

    n: int
    k: int
    kept: int
    group_size: int
    bits: int
    values: Tensor
    indices: Tensor
    input_order: Tensor | None


def index_bits(m: int) -> int:
    """The fewest of `INDEX_BITS` that hold an index within a group of m."""
    return next(bits for bits in INDEX_BITS if 1 << bits >= m)


def pack_for_small_m(stored: NMFormat) -> NMSmallMWeight:
    """Lay the weight out by `packed_chunks` on the format's device."""
    (n, k), bits = stored.shape, index_bits(stored.m)
    values, indices = packed_chunks(stored.values.reshape(n, -1), stored.indices.reshape(n, -1), bits=bits)
    return NMSmallMWeight(n, k, stored.n, stored.m, bits, values, indices, stored.input_order)


def n_m_small_m(x: Tensor, packed: NMSmallMWeight, bias: Tensor | None) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias for up to 64 rows of X.

    Args:
        x: [M, K], float16, bfloat16 or float32 as the weight, any strides; rows that are contiguous and begin at 16 bytes
            are read fastest.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], contiguous, in x's dtype; added up in float32.
    Raises:
        ValueError: operands that do not fit together.
    """
    problem = problem_of(packed, x.shape[0])
    return thread_per_output_product(LAUNCHES, x, packed.values, packed.indices, packed.input_order, bias, problem)


def problem_of(packed: NMSmallMWeight, m: int) -> ThreadPerOutputProblem:
    """Of m rows of X."""
    size = packed.values.element_size()
    return ThreadPerOutputProblem(m, packed.k, packed.n, packed.kept, packed.group_size, size, packed.bits)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """It is for few rows, and compiled for compute capability 9.0 alone."""
    if problem.dtype not in TYPE_CODES:
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    return rows_unsupported_reason(problem.m) or hopper_unsupported_reason(problem, KERNEL)


LAUNCHES = tuned_launches(KERNEL, VERSION, lambda packed, problem: problem_of(packed, problem.m))
ENTRY = kernel_entry(
    KERNEL,
    "n_m",
    weight=NMSmallMWeight,
    run=n_m_small_m,
    pack=pack_for_small_m,
    unsupported=_unsupported,
    tunable=LAUNCHES,
    most_rows=lambda packed: MOST_ROWS,
)
