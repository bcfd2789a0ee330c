"""The n:m weight laid out for few rows of X: chunks with places of 2, 4, 5 or 6 bits."""

from dataclasses import dataclass

from torch import Tensor

from sparsefront_kernels.common.lane_chunks import LaneChunks, lane_chunks
from sparsefront_kernels.n_m.format import NMFormat

PLACE_BITS = (2, 4, 5, 6)


@dataclass(frozen=True, eq=False)
class NMSmallMPackedWeight:
    """What the kernel for few rows reads.

    Args:
        n, k: outputs and inputs of the weight.
        kept, group_size: n and m of the pattern.
        bits: of a place within a group.
        chunks: values and places.
        input_order: int32 [K], as in `NMFormat`, or None.
    """

    n: int
    k: int
    kept: int
    group_size: int
    bits: int
    chunks: LaneChunks
    input_order: Tensor | None


def place_bits(m: int) -> int:
    """The fewest of `PLACE_BITS` that hold a place within a group of m."""
    return next(bits for bits in PLACE_BITS if 1 << bits >= m)


def pack_for_small_m(stored: NMFormat) -> NMSmallMPackedWeight:
    """Lay the weight out for the kernel on the format's device."""
    (n, k), bits = stored.shape, place_bits(stored.m)
    chunks = lane_chunks(stored.values.reshape(n, -1), stored.indices.reshape(n, -1), bits=bits)
    return NMSmallMPackedWeight(n, k, stored.n, stored.m, bits, chunks, stored.input_order)
