"""The n:m weight laid out for tensor cores: a lane has the kept weights that it holds as left operands."""

import torch
from torch.nn.functional import pad

from sparsefront_kernels.common.lane_chunks import CHUNK, LANES, lane_chunks
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight, place_bits

PATTERNS = ((1, 4), (2, 4), (3, 32))
SLOTS = 4  # of a lane for what it keeps of a group of 32
TURNED = 16  # in the places of lanes that read a group of 32 second half first


def pack_for_mma(stored: NMFormat) -> NMSmallMPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Chunks are as large as those of the kernel for CUDA cores, but a lane's 32 weights belong to four outputs: lane 4r + q
    has of outputs r, 8 + r, 16 + r and 24 + r of the strip the groups q * 4 … q * 4 + 3 of every 16, or groups q and 4 + q of
    every eight where they are of 32.
    """
    return _of_four(stored) if stored.m == 4 else _of_32(stored)


def pattern_unsupported_reason(n: int, m: int) -> str | None:
    """Why weights of n:m cannot be laid out, or None."""
    return None if (n, m) in PATTERNS else f"takes 1:4, 2:4 and 3:32, not {n}:{m}"


def _of_four(stored: NMFormat) -> NMSmallMPackedWeight:
    kept, parts = stored.n, []
    for tensor in _padded(stored, CHUNK // kept):
        # outputs: half, upper or lower, r; groups: chunk, block of 64 inputs, q, window
        view = tensor.unflatten(1, (2, 2, 8)).unflatten(4, (-1, 2 // kept, 4, 4))
        parts.append(view.permute(0, 3, 6, 4, 1, 5, 7, 2, 8))
    return _packed(stored, *parts, kept=kept)


def _of_32(stored: NMFormat) -> NMSmallMPackedWeight:
    """Of each group the first slots are filled, whatever they keep."""
    parts = []
    for tensor in _padded(stored, CHUNK // SLOTS):
        # outputs: half, upper or lower, r; groups: chunk, the lane's first or second, q
        view = pad(tensor, (0, SLOTS - stored.n)).unflatten(1, (2, 2, 8)).unflatten(4, (-1, 2, 4))
        parts.append(view.permute(0, 3, 6, 4, 5, 1, 2, 7))
    values, places = parts
    q = torch.arange(4, device=stored.device)[:, None, None, None, None, None]
    return _packed(stored, values, torch.where(q >= 2, places.int() ^ TURNED, places.int()), kept=SLOTS)


def _padded(stored: NMFormat, of_chunk: int) -> list[torch.Tensor]:
    """Values and places [strips, 32, groups, n], groups filled up to whole chunks."""
    strips, chunks = -(-stored.shape[0] // LANES), -(-stored.values.shape[1] // of_chunk)
    lacking = (0, 0, 0, chunks * of_chunk - stored.values.shape[1], 0, strips * LANES - stored.shape[0])
    return [pad(tensor, lacking).unflatten(0, (strips, LANES)) for tensor in (stored.values, stored.indices)]


def _packed(stored: NMFormat, values: torch.Tensor, places: torch.Tensor, *, kept: int) -> NMSmallMPackedWeight:
    """From [strips, r, q, chunks, …], which end with what a lane has of a chunk in its order.

    Args:
        kept: of a group, as the kernel counts its slots.
    """
    (n, k), bits = stored.shape, place_bits(stored.m)
    rows = [part.reshape(part.shape[0] * LANES, part.shape[3] * CHUNK) for part in (values, places)]
    chunks = lane_chunks(*rows, bits=bits)
    return NMSmallMPackedWeight(n, k, kept, stored.m, bits, chunks, stored.input_order)
