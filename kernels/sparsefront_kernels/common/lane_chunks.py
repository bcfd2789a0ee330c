"""A weight laid out for kernels of which every lane owns an output: chunks of 32 kept weights and their inputs' places.

The layout is that of cuda/lane_chunk.cuh.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 32  # kept weights of an output that a lane holds at a time
LANES = 32  # outputs of a strip
VECTOR_BYTES = 16
WORD_BITS = 32
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, eq=False)
class LaneChunks:
    """A weight in chunks; what is missing of the last strip or chunk is filled up with zero weights at place 0.

        strip      outputs 0 … 31, one to a lane            chunk    kept weights 0 … 31 of each
                   outputs 32 … 63                                     kept weights 32 … 63

    Args:
        values: [strips, chunks, 1024] in the weight's dtype; within a chunk [vector][lane][16 bytes].
        places: int32 [strips, chunks, words * 32], to be read as bits: place i of a lane at bit i * bits of its
            words; within a chunk [lane][4 words], as often as there are 4, and then [lane][the rest].
    """

    values: Tensor
    places: Tensor


def lane_chunks(values: Tensor, places: Tensor, *, bits: int, block: int = 1) -> LaneChunks:
    """Lay out rows of kept weights.

    Args:
        values: [N, count], the kept weights of each output, in the order of the places.
        places: int [N, count / block], each below 2 ** bits.
        bits: of a place; a lane's places of a chunk must fill whole words.
        block: neighbouring weights that share a place.
    """
    n, count = values.shape
    strips, chunks = -(-n // LANES), -(-count // CHUNK)
    lacking = (0, chunks * CHUNK - count, 0, strips * LANES - n)
    per_vector = VECTOR_BYTES // values.element_size()
    # strip, lane, chunk, vector, element → strip, chunk, vector, lane, element
    parts = pad(values, lacking).view(strips, LANES, chunks, CHUNK // per_vector, per_vector)
    vectors = parts.permute(0, 2, 3, 1, 4).reshape(strips, chunks, CHUNK * LANES)
    lacking = (0, chunks * CHUNK // block - places.shape[1], 0, strips * LANES - n)
    numbers = pad(places.long(), lacking).view(strips, LANES, chunks, CHUNK // block)
    words = _packed(numbers, bits).transpose(1, 2)  # [strips, chunks, lanes, words]
    return LaneChunks(vectors, torch.cat([part.flatten(2) for part in words.split(4, dim=3)], dim=2))


def _packed(numbers: Tensor, bits: int) -> Tensor:
    """Numbers [..., count] below 2 ** bits one after the other in words: int32 [..., count * bits / 32]."""
    count = numbers.shape[-1]
    words = numbers.new_zeros(*numbers.shape[:-1], count * bits // WORD_BITS)
    for at in range(count):
        word, bit = divmod(at * bits, WORD_BITS)
        words[..., word] |= numbers[..., at] << bit & 0xFFFFFFFF
        if bit + bits > WORD_BITS:
            words[..., word + 1] |= numbers[..., at] >> (WORD_BITS - bit)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
