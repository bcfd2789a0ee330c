"""The kernels of which every lane owns rows of X, in plain loops: what their blocks read of the lists of a packed weight."""

import torch

SLAB, QUAD, SLOT_BYTES, PLACES = 256, 4, 128, 256


def walked_product(lists, x, *, n, splits=1, slabs=4):
    """Y [N, M] in float64 from x [K, M] as a cluster of `splits` blocks computes it, `slabs` slabs in shared memory at once.

    Each output must be written once, and each entry of a list multiplied once, by an input that is in shared memory.
    """
    block, (groups, slab_count) = lists.values.shape[2], lists.pointers.shape
    slab_count -= 1
    y = torch.full((n, x.shape[1]), torch.nan, dtype=torch.float64)
    for position in range(groups):
        pointers = lists.pointers[position].tolist()
        sums = torch.zeros(block, x.shape[1], dtype=torch.float64)
        met = []
        for rank in range(splits):
            next_slab, end = slab_count * rank // splits, slab_count * (rank + 1) // splits
            while next_slab < end:
                first, last = next_slab, min(next_slab + slabs, end, (next_slab // PLACES + 1) * PLACES)
                for entry, weights, address in _entries(lists, pointers, first, last):
                    met.append(entry)
                    slot, within = divmod(address, SLOT_BYTES)
                    assert within == 0 and 0 <= slot < min((last - first) * SLAB, x.shape[0] - first * SLAB)
                    sums += weights[:, None] * x[first * SLAB + slot]
                next_slab = last
        assert sorted(entry for entry in met if entry is not None) == list(range(pointers[0], pointers[-1]))
        group = position if lists.order is None else int(lists.order[position])
        assert y[group * block : (group + 1) * block].isnan().all()
        y[group * block : (group + 1) * block] = sums
    return y


def _entries(lists, pointers, first_slab, last_slab):
    """(entry, or None for a zero in its place; weights [block]; address in shared memory) of a list in slabs [first, last)."""
    first, beyond = pointers[first_slab], pointers[last_slab]
    origin = -(first_slab % PLACES) * SLAB * SLOT_BYTES

    def at(entry, stored=True):
        place = int(lists.places.view(-1)[entry]) & 0xFFFF
        weights = lists.values.view(-1, lists.values.shape[2])[entry].double()
        return (
            (entry, weights, place * SLOT_BYTES + origin)
            if stored
            else (None, 0 * weights, place * SLOT_BYTES + origin)
        )

    start, whole_end = (first + QUAD - 1) // QUAD, beyond // QUAD
    done = start
    for slab in range(first_slab, last_slab):  # as the first set of a warp waits for them
        end = whole_end if slab + 1 == last_slab else pointers[slab + 1] // QUAD
        for entry in range(done * QUAD, end * QUAD):
            assert entry < pointers[slab + 1]  # of a slab that has come
            yield at(entry)
        done = max(done, end)
    parts = [first // QUAD] if first % QUAD and first < beyond else []
    parts += [whole_end] if beyond % QUAD and whole_end * QUAD >= first else []
    for quad in parts:
        for entry in range(quad * QUAD, (quad + 1) * QUAD):
            near = min(max(entry, first), beyond - 1)
            yield at(near, stored=near == entry)
