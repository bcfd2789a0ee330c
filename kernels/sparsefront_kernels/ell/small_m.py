"""`ell_small_m`: products with up to 16 rows of X on CUDA cores, in which a thread owns an output (csrc/ell_small_m.cu)."""

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from sparsefront_kernels.cuda.launch import TYPE_CODES
from sparsefront_kernels.cuda.thread_per_output import (
    CHUNK,
    ThreadPerOutputProblem,
    fits,
    packed_chunks,
    rows_unsupported_reason,
    thread_per_output_product,
    tuned_launches,
)
from sparsefront_kernels.device_support import hopper_unsupported_reason
from sparsefront_kernels.ell.format import ELLFormat
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_op import kernel_entry
from sparsefront_kernels.problem import Problem

KERNEL = "ell_small_m"
VERSION = 1  # increment when a change of the kernel invalidates measurements
MOST_ROWS = 16
COLUMN_BITS = 16


@dataclass(frozen=True, eq=False)
class ELLSmallMWeight:
    """The packed weight: all inputs form one group, of which an output keeps whole chunks.

    Args:
        n, k: outputs and inputs of the weight.
        block: side of a block, and number of weights of an output that share a column index.
        kept: weights per output, padded to whole chunks.
        values: [strips of 32 outputs, chunks, 1024].
        columns: int32 [strips, chunks, words]: 16-bit block columns.
    """

    n: int
    k: int
    block: int
    kept: int
    values: Tensor
    columns: Tensor


def pack_for_small_m(stored: ELLFormat) -> ELLSmallMWeight:
    """Pack the weight by `packed_chunks`, on the format's device."""
    (n, k), b = stored.shape, stored.block
    values = stored.values.transpose(1, 2).reshape(n, stored.count * b)  # [N / b, b, count, b]
    columns = stored.columns.repeat_interleave(b, dim=0)
    values, columns = packed_chunks(values, columns, bits=COLUMN_BITS, block=b)
    return ELLSmallMWeight(n, k, b, max(1, values.shape[1]) * CHUNK, values, columns)


def ell_small_m(x: Tensor, packed: ELLSmallMWeight, bias: Tensor | None) -> Tensor:
    """Y[M, N] = X[M, K] · Wᵀ + bias for up to 16 rows of X.

    Args:
        x: [M, K], float16, bfloat16 or float32 like the weight, any strides; contiguous 16-byte aligned rows are fastest.
        bias: [N], any float dtype, or None.
    Returns:
        [M, N], contiguous, in x's dtype; accumulated in float32.
    Raises:
        ValueError: incompatible operands.
    """
    problem = problem_of(packed, x.shape[0])
    return thread_per_output_product(LAUNCHES, x, packed.values, packed.columns, None, bias, problem)


def problem_of(packed: ELLSmallMWeight, m: int) -> ThreadPerOutputProblem:
    """The problem for m rows of X."""
    return _problem(m, packed.k, packed.n, packed.kept, packed.values.element_size(), packed.block)


def _problem(m: int, k: int, n: int, kept: int, element_bytes: int, block: int) -> ThreadPerOutputProblem:
    """The problem of a product whose outputs each keep `kept` of all inputs."""
    return ThreadPerOutputProblem(m, k, n, kept, k, element_bytes, COLUMN_BITS, block)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Supports few rows, needs all inputs at once, and runs on compute capability 9.0."""
    if problem.dtype not in TYPE_CODES:
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    if reason := rows_unsupported_reason(problem.m, MOST_ROWS):
        return reason
    ell = cast(ELLFormat, stored)
    padded_count = max(1, -(-ell.count * ell.block // CHUNK)) * CHUNK
    if not fits(_problem(problem.m, problem.k, problem.n, padded_count, problem.dtype.itemsize, ell.block)):
        return f"brings all inputs into shared memory, and {problem.k} do not fit"
    return hopper_unsupported_reason(problem, KERNEL)


LAUNCHES = tuned_launches(KERNEL, VERSION, lambda packed, problem: problem_of(packed, problem.m))
ENTRY = kernel_entry(
    KERNEL,
    "ell",
    weight=ELLSmallMWeight,
    run=ell_small_m,
    pack=pack_for_small_m,
    unsupported=_unsupported,
    tunable=LAUNCHES,
    most_rows=lambda packed: MOST_ROWS,
)
