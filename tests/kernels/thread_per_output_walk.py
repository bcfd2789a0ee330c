"""The kernels of which each thread owns an output, in plain loops: what they read of a packed weight, and in which order."""

import torch

CHUNK = LANES = 32


def walked_product(values, indices, x, *, n, bits, block, kept, group_size):
    """Y [M, N] in float64 from x [M, K]; inputs beyond K, which only filled-up weights have, hold zeros."""
    strips, count, _ = values.shape
    per_vector = 16 // values.element_size()
    words_of_lane = indices.shape[2] // LANES
    y = torch.zeros(x.shape[0], strips * LANES, dtype=torch.float64)
    inputs = torch.cat([x.double(), torch.zeros(x.shape[0], 64 * CHUNK, dtype=torch.float64)], dim=1)
    for strip in range(strips):
        for chunk in range(count):
            own = values[strip, chunk].double().view(-1, LANES, per_vector)
            words = [word & 0xFFFFFFFF for word in indices[strip, chunk].tolist()]
            for lane in range(LANES):
                mine = []
                for word in range(0, words_of_lane, 4):  # in vectors of 4 words, the last one narrower
                    width = min(4, words_of_lane - word)
                    mine += words[word * LANES + lane * width :][:width]
                number = sum(word << 32 * at for at, word in enumerate(mine))
                for j in range(CHUNK):
                    index = number >> j // block * bits & (1 << bits) - 1
                    group = (chunk * CHUNK + j) // kept
                    weight = own[j // per_vector, lane, j % per_vector]
                    y[:, strip * LANES + lane] += weight * inputs[:, group * group_size + index * block + j % block]
    assert not y[:, n:].any()
    return y[:, :n]
