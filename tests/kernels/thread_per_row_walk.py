"""The kernels of which each thread owns rows of X, in plain loops: what their blocks read of the lists of a packed weight."""

import torch

K_BLOCK, QUAD, SLOT_BYTES, DISTINCT_K_BLOCKS = 256, 4, 128, 256


def walked_product(lists, x, *, n, splits=1, k_blocks=4):
    """Y [N, M] in float64 from x [K, M] as a cluster of `splits` blocks computes it.

    `k_blocks` of 256 inputs are in shared memory at once. Each output must be written once, and each entry of a list
    multiplied once, by an input that is in shared memory.
    """
    block, (groups, k_block_count) = lists.values.shape[2], lists.pointers.shape
    k_block_count -= 1
    y = torch.full((n, x.shape[1]), torch.nan, dtype=torch.float64)
    for position in range(groups):
        pointers = lists.pointers[position].tolist()
        sums = torch.zeros(block, x.shape[1], dtype=torch.float64)
        met = []
        for rank in range(splits):
            next_k_block, end = k_block_count * rank // splits, k_block_count * (rank + 1) // splits
            while next_k_block < end:
                first, last = (
                    next_k_block,
                    min(next_k_block + k_blocks, end, (next_k_block // DISTINCT_K_BLOCKS + 1) * DISTINCT_K_BLOCKS),
                )
                for entry, weights, address in _entries(lists, pointers, first, last):
                    met.append(entry)
                    slot, within = divmod(address, SLOT_BYTES)
                    assert within == 0 and 0 <= slot < min((last - first) * K_BLOCK, x.shape[0] - first * K_BLOCK)
                    sums += weights[:, None] * x[first * K_BLOCK + slot]
                next_k_block = last
        assert sorted(entry for entry in met if entry is not None) == list(range(pointers[0], pointers[-1]))
        group = position if lists.order is None else int(lists.order[position])
        assert y[group * block : (group + 1) * block].isnan().all()
        y[group * block : (group + 1) * block] = sums
    return y


def _entries(lists, pointers, first_k_block, last_k_block):
    """(entry, or None for a zero in its place; weights [block]; address in shared memory) of a list in k-blocks [first, last)."""
    first, beyond = pointers[first_k_block], pointers[last_k_block]
    origin = -(first_k_block % DISTINCT_K_BLOCKS) * K_BLOCK * SLOT_BYTES

    def at(entry, stored=True):
        index = int(lists.indices.view(-1)[entry]) & 0xFFFF
        weights = lists.values.view(-1, lists.values.shape[2])[entry].double()
        return (
            (entry, weights, index * SLOT_BYTES + origin)
            if stored
            else (None, 0 * weights, index * SLOT_BYTES + origin)
        )

    start, whole_end = (first + QUAD - 1) // QUAD, beyond // QUAD
    done = start
    for k_block in range(first_k_block, last_k_block):  # as the first set of a warp waits for them
        end = whole_end if k_block + 1 == last_k_block else pointers[k_block + 1] // QUAD
        for entry in range(done * QUAD, end * QUAD):
            assert entry < pointers[k_block + 1]  # of a k-block that has come
            yield at(entry)
        done = max(done, end)
    parts = [first // QUAD] if first % QUAD and first < beyond else []
    parts += [whole_end] if beyond % QUAD and whole_end * QUAD >= first else []
    for quad in parts:
        for entry in range(quad * QUAD, (quad + 1) * QUAD):
            near = min(max(entry, first), beyond - 1)
            yield at(near, stored=near == entry)
