"""`n_m_small_m`: products with up to 64 rows of X on CUDA cores; a thread owns an output (csrc/n_m_small_m.cu)."""

from sparsefront_kernels.cuda.thread_per_output import (
    ThreadPerOutputWeight,
    dtype_unsupported_reason,
    packed_chunks,
    thread_per_output_entry,
)
from sparsefront_kernels.n_m.format import NMFormat

INDEX_BITS = (2, 4, 5, 6)


def index_bits(m: int) -> int:
    """The fewest of `INDEX_BITS` that hold an index within a group of m."""
    return next(bits for bits in INDEX_BITS if 1 << bits >= m)


def pack_for_small_m(stored: NMFormat) -> ThreadPerOutputWeight:
    """Pack the weight by `packed_chunks`, on the format's device."""
    (n, k), bits = stored.shape, index_bits(stored.m)
    parts = packed_chunks(stored.values.reshape(n, -1), stored.indices.reshape(n, -1), bits=bits)
    return ThreadPerOutputWeight(n, k, stored.n, stored.m, bits, 1, *parts, stored.input_order)


ENTRY = thread_per_output_entry(
    "n_m",
    kernel="n_m_small_m",
    version=1,
    pack=pack_for_small_m,
    unsupported=lambda stored, problem: dtype_unsupported_reason(problem),
)
