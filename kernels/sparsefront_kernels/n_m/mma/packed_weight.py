"""The n:4 weight laid out for tensor cores: a lane has the kept weights that it holds as left operands."""

from torch.nn.functional import pad

from sparsefront_kernels.common.lane_chunks import CHUNK, LANES, lane_chunks
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight

GROUP_SIZE = 4
MOST_KEPT = 2
PLACE_BITS = 2


def pack_for_mma(stored: NMFormat) -> NMSmallMPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Chunks are as large as those of the kernel for CUDA cores, but a lane's 32 weights belong to four outputs: lane 4r + q
    has of outputs r, 8 + r, 16 + r and 24 + r of the strip the groups q * 4 … q * 4 + 3 of every 16.
    """
    (n, k), kept = stored.shape, stored.n
    of_chunk = CHUNK // kept  # groups
    strips, chunks = -(-n // LANES), -(-stored.values.shape[1] // of_chunk)
    lacking = (0, 0, 0, chunks * of_chunk - stored.values.shape[1], 0, strips * LANES - n)
    parts = []
    for tensor in (stored.values, stored.indices):
        # outputs: strip, half, upper or lower, r; groups: chunk, block of 64 inputs, q, window
        view = pad(tensor, lacking).view(strips, 2, 2, 8, chunks, 2 // kept, 4, 4, kept)
        parts.append(view.permute(0, 3, 6, 4, 1, 5, 7, 2, 8).reshape(strips * LANES, chunks * CHUNK))
    laid_out = lane_chunks(*parts, bits=PLACE_BITS)
    return NMSmallMPackedWeight(n, k, kept, GROUP_SIZE, PLACE_BITS, laid_out, stored.input_order)


def pattern_unsupported_reason(n: int, m: int) -> str | None:
    """Why weights of n:m cannot be laid out, or None."""
    taken = m == GROUP_SIZE and n <= MOST_KEPT
    return None if taken else f"takes 1:4 and 2:4, not {n}:{m}"
