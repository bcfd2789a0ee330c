"""The products of n_m_mma in plain loops: what each lane of a warp holds, and what the tensor cores make of it.

Layouts of operands are those of the PTX ISA: "mma.m16n8k16" of 16-bit floats, "mma.sp.m16n8k32" with its metadata, "ldmatrix".
"""

import torch

LANES = 32


def of_lanes(packed, strip, chunk):
    """Values [32 lanes, count] in float64 and words of indices of a chunk as numbers without a sign."""
    values = packed.values[strip, chunk].double().view(-1, LANES, 8).transpose(0, 1).flatten(1)
    return values, [word & 0xFFFFFFFF for word in packed.indices[strip, chunk].tolist()]


def sparse_left_operand(words, metadata, selector):
    """Dense [16, 32] of a sparse left operand.

    Args:
        words: [32 lanes][4 words][2 values].
        metadata: [32 lanes], of which two in every four count.
    """
    dense = torch.zeros(16, 32, dtype=torch.float64)
    for lane in range(LANES):
        r, q = divmod(lane, 4)
        for word in range(4):
            row, group = r + word % 2 * 8, word // 2 * 4 + q  # of four k
            source = metadata[4 * r + 2 * selector + group // 4]
            pair = source >> word % 2 * 16 + group % 4 * 4 & 15
            first, second = pair & 3, pair >> 2
            assert first < second  # the other order is undefined
            dense[row, group * 4 + first] = words[lane][word][0]
            dense[row, group * 4 + second] = words[lane][word][1]
    return dense


def two_of_four(packed, strip, chunk):
    """Dense weights [32 outputs, 64 inputs] of a chunk, as OfFour<2>::multiply lets rows of X meet them."""
    values, words = of_lanes(packed, strip, chunk)
    dense = torch.zeros(32, 64, dtype=torch.float64)
    for k_block in range(2):
        metadata = [words[lane * 2 + k_block] for lane in range(LANES)]
        for half in range(2):
            left = values.view(LANES, 2, 2, 4, 2)[:, k_block, half]
            dense[half * 16 : half * 16 + 16, k_block * 32 : k_block * 32 + 32] = sparse_left_operand(
                left, metadata, half
            )
    return dense  # ldmatrix gives lane q of a row inputs 2 q, 2 q + 1 of each eight: k is the input


def one_of_four(packed, strip, chunk):
    """Dense weights [32 outputs, 128 inputs] of a chunk, as OfFour<1>::multiply lets rows of X meet them."""
    values, words = of_lanes(packed, strip, chunk)
    dense = torch.zeros(32, 128, dtype=torch.float64)
    for k_block in range(2):
        metadata = [words[lane * 2] >> k_block & 0x55555555 | 0x88888888 for lane in range(LANES)]
        for half in range(2):
            both = values.view(LANES, 2, 2, 4, 2)[:, k_block, half]
            in_first = torch.zeros(LANES, 4, 2, dtype=torch.bool)
            for lane in range(LANES):
                for word in range(4):
                    at = (k_block * 2 + half) * 4 + word
                    bits = words[lane * 2 + 1] << at // 2 & 0xFFFFFFFF
                    for which in range(2):  # bytes whose signs fill the halves of the mask
                        in_first[lane, word, which] = bits >> (at % 2 * 2 + which) * 8 + 7 & 1
            for product, masked in enumerate((both * in_first, both * ~in_first)):
                operand = sparse_left_operand(masked, metadata, half)
                for k in range(32):  # lane q reads 16 inputs of a row, words 2 i + product of them are its operand
                    q, i = k % 8 // 2, k // 8
                    met = k_block * 64 + q * 16 + i * 4 + product * 2 + k % 2
                    dense[half * 16 : half * 16 + 16, met] += operand[:, k]
    return dense


def three_of_32(packed, strip, chunk, x):
    """Sums [rows, 32 outputs] of a chunk, as ThreeOf32::multiply makes them of slots.

    Args:
        x: [rows, 256], of the chunk, a multiple of 16 rows.
    """
    values, words = of_lanes(packed, strip, chunk)
    right = values.view(LANES, 4, 3, 2)  # tile, kept, which of a word
    slots = x.double().view(-1, 8, 8, 32).permute(0, 3, 2, 1)  # eight rows, index, group, row
    sums = torch.zeros(x.shape[0], 32, dtype=torch.float64)
    for at in range(48):
        tile, pair, kept = at // 12, at // 3 % 4, at % 3
        for block in range(x.shape[0] // 16):
            left = torch.zeros(16, 16, dtype=torch.float64)
            for lane in range(LANES):  # says where eight rows of X lie
                own = (lane // 16 * 8 + lane % 8) * 4 + at // 6 // 4 * 64 + at // 6 % 4
                matrix, k = lane // 8, lane % 8
                named = slots[block * 2 + lane // 8 % 2, words[own] >> at % 6 * 5 & 31, lane % 8]
                left[matrix % 2 * 8 : matrix % 2 * 8 + 8, matrix // 2 * 8 + k] = named
            operand = torch.zeros(16, 8, dtype=torch.float64)
            for lane in range(LANES):
                r, q = divmod(lane, 4)
                for k_half in range(2):
                    if r == 2 * pair + k_half:
                        operand[k_half * 8 + 2 * q : k_half * 8 + 2 * q + 2, r] = right[lane, tile, kept]
            sums[block * 16 : block * 16 + 16, tile * 8 : tile * 8 + 8] += left @ operand
    return sums
