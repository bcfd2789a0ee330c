"""The n:m weight laid out for tensor cores: a lane has what it holds as operands."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.common.lane_chunks import LANES, LaneChunks
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.small_m.packed_weight import NMSmallMPackedWeight, place_bits

PATTERNS = ((1, 4), (2, 4), (3, 32))
GROUPS = {1: 32, 2: 16, 3: 8}  # of each output in a chunk, by how many weights are kept of a group
VECTOR = 8  # values of 16 bytes
PLACES_OF_WORD = 6  # of 5 bits each


def pack_for_mma(stored: NMFormat) -> NMSmallMPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Strips are of 32 outputs. Of four, a chunk has 1024 kept weights: two k-blocks of two sparse left operands of 16 outputs
    each, values as [k-block][operand][lane][four words of two], and two words of places for a lane. Of 32, it has 768, as
    right operands, [three][lane][four words of two], and 128 words of places. See csrc/sparse_fragments.cuh and
    csrc/gathered_fragments.cuh.
    """
    kept = stored.n
    strips, chunks = -(-stored.shape[0] // LANES), -(-stored.values.shape[1] // GROUPS[kept])
    lacking = (0, 0, 0, chunks * GROUPS[kept] - stored.values.shape[1], 0, strips * LANES - stored.shape[0])
    values = pad(stored.values, lacking).unflatten(0, (strips, LANES))  # [strips, 32, groups, kept]
    places = pad(stored.indices, lacking).unflatten(0, (strips, LANES)).long()
    parts = {1: _one_of_four, 2: _two_of_four, 3: _three_of_32}[kept](values, places)
    (n, k), bits = stored.shape, place_bits(stored.m)
    return NMSmallMPackedWeight(n, k, kept, stored.m, bits, LaneChunks(*parts), stored.input_order)


def pattern_unsupported_reason(n: int, m: int) -> str | None:
    """Why weights of n:m cannot be laid out, or None."""
    return None if (n, m) in PATTERNS else f"takes 1:4, 2:4 and 3:32, not {n}:{m}"


def _two_of_four(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """A sparse group is a group of the weight, as it is."""
    # outputs: half, upper or lower, r; groups: chunk, k-block of 32 inputs, half of it, q
    values, places = (part.unflatten(1, (2, 2, 8)).unflatten(4, (-1, 2, 2, 4)) for part in (values, places))
    second = torch.maximum(places[..., 1], places[..., 0] + 1)  # of groups that fill up, whose places are 0 and 0
    words = _metadata(places[..., 0] | second << 2)
    return _vectors(values.permute(0, 4, 3, 7, 5, 1, 6, 2, 8)), _signed(words).flatten(2)


def _one_of_four(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Two groups share two sparse groups: the first two inputs of both, and the last two. A word holds a weight of each."""
    # outputs as above; groups: chunk, k-block of 64 inputs, q % 2, which of a word, half of the k-block, q // 2
    values, places = (
        part.squeeze(3).unflatten(1, (2, 2, 8)).unflatten(4, (-1, 2, 2, 2, 2, 2)) for part in (values, places)
    )
    # ends with half of the k-block, q, which of a word
    odd = (places & 1).permute(0, 1, 2, 3, 4, 5, 8, 9, 6, 7).flatten(7, 8)
    metadata = _metadata(odd[..., 0] | odd[..., 1] << 2)
    # strip, chunk, r, q; bits: upper or lower, which of a word, and from the highest one on k-block, half, half of the k-block
    among_first = (places < 2).long().permute(0, 4, 3, 9, 6, 2, 7, 5, 1, 8).flatten(7).flip(7).flatten(5)
    bits = _in_one_word(among_first, 1).flatten(2)
    words = torch.stack([metadata[..., 0] | metadata[..., 1] << 1, bits], dim=3)
    return _vectors(values.permute(0, 4, 3, 9, 6, 5, 1, 8, 2, 7)), _signed(words).flatten(2)


def _three_of_32(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """A lane holds values of two groups of one output of each tile, and names places of one group of four outputs."""
    # outputs: tile, r; groups: chunk, q, which of a word
    values = values.unflatten(1, (4, 8)).unflatten(3, (-1, 4, 2)).permute(0, 3, 2, 4, 1, 6, 5)
    # outputs: tile, pair, which of it; groups: chunk, and in it
    places = places.unflatten(1, (4, 4, 2)).unflatten(4, (-1, 8)).permute(0, 4, 3, 5, 1, 2, 6)
    words = _in_one_word(places.flatten(4).unflatten(4, (-1, PLACES_OF_WORD)), 5)  # [strips, chunks, 2, 8, words]
    return _vectors(values), _signed(words).flatten(2, 3).unflatten(3, (-1, 4)).transpose(2, 3).flatten(2)


def _metadata(places: Tensor) -> Tensor:
    """Words of metadata [strips, chunks, lanes, k-blocks] of four bits for each sparse group.

    Args:
        places: [strips, half of 32 outputs, upper or lower eight, r, chunks, k-blocks, half of the k-block, q].
    """
    return _in_one_word(places.permute(0, 4, 3, 1, 6, 5, 2, 7).flatten(6), 4).flatten(2, 4)


def _in_one_word(numbers: Tensor, bits: int) -> Tensor:
    """Numbers [..., count] below 2 ** bits, the first one lowest: int64 [...]."""
    return (numbers << bits * torch.arange(numbers.shape[-1], device=numbers.device)).sum(-1)


def _signed(words: Tensor) -> Tensor:
    """int32 of the same bits as int64 below 2 ** 32."""
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _vectors(values: Tensor) -> Tensor:
    """[strips, chunks, lanes, …] as [strips, chunks, all]: 16 bytes of each lane, again and again."""
    of_lanes = values.reshape(*values.shape[:2], LANES, -1, VECTOR)
    return of_lanes.transpose(2, 3).flatten(2)
