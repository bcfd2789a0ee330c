"""`ell_small_m`: products with up to 16 rows of X on CUDA cores, in which a thread owns an output (csrc/ell_small_m.cu)."""

from typing import cast

from sparsefront_kernels.cuda.thread_per_output import (
    CHUNK,
    ThreadPerOutputProblem,
    ThreadPerOutputWeight,
    dtype_unsupported_reason,
    fits,
    packed_chunks,
    thread_per_output_entry,
)
from sparsefront_kernels.ell.format import ELLFormat
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import Problem

COLUMN_BITS = 16


def pack_for_small_m(stored: ELLFormat) -> ThreadPerOutputWeight:
    """Pack the weight by `packed_chunks`, on the format's device: all inputs form one group, of which an output keeps whole
    chunks.
    """
    (n, k), b = stored.shape, stored.block
    values = stored.values.transpose(1, 2).reshape(n, stored.count * b)  # [N / b, b, count, b]
    columns = stored.columns.repeat_interleave(b, dim=0)
    values, columns = packed_chunks(values, columns, bits=COLUMN_BITS, block=b)
    return ThreadPerOutputWeight(n, k, _padded(values.shape[1]), k, COLUMN_BITS, b, values, columns, None)


def _padded(chunks: int) -> int:
    """Kept weights per output."""
    return max(1, chunks) * CHUNK


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: it needs all inputs at once."""
    reason = dtype_unsupported_reason(problem)
    if reason:
        return reason
    ell, (m, n, k) = cast(ELLFormat, stored), (problem.m, problem.n, problem.k)
    entries = _padded(-(-ell.count * ell.block // CHUNK))
    if fits(
        ThreadPerOutputProblem(m, k, n, entries, k, problem.dtype.itemsize, COLUMN_BITS, ell.block), problem.device
    ):
        return None
    return f"brings all inputs into shared memory, and {k} do not fit"


ENTRY = thread_per_output_entry(
    "ell", kernel="ell_small_m", version=1, pack=pack_for_small_m, unsupported=_unsupported, most_rows=16
)
