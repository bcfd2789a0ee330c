"""The ELL weight laid out for few rows of X: chunks with 16 bits for each block column."""

from dataclasses import dataclass

from sparsefront_kernels.common.lane_chunks import CHUNK, LaneChunks, lane_chunks
from sparsefront_kernels.ell.format import ELLFormat

COLUMN_BITS = 16


@dataclass(frozen=True, eq=False)
class ELLSmallMPackedWeight:
    """What the kernel for few rows reads: all inputs are one group, of which an output keeps whole chunks.

    Args:
        n, k: outputs and inputs of the weight.
        block: side of a block; that many weights of an output share a column.
        kept: weights of an output, filled up to whole chunks.
        chunks: values and block columns.
    """

    n: int
    k: int
    block: int
    kept: int
    chunks: LaneChunks


def pack_for_small_m(stored: ELLFormat) -> ELLSmallMPackedWeight:
    """Lay the weight out for the kernel on the format's device."""
    (n, k), b = stored.shape, stored.block
    values = stored.values.transpose(1, 2).reshape(n, stored.count * b)  # [N / b, b, count, b]
    columns = stored.columns.repeat_interleave(b, dim=0)
    chunks = lane_chunks(values, columns, bits=COLUMN_BITS, block=b)
    return ELLSmallMPackedWeight(n, k, b, max(1, chunks.values.shape[1]) * CHUNK, chunks)
