"""The kernels of which every lane owns rows of X, in plain loops: what they read of the lists of a packed weight."""

import torch

SLAB, SLOT_BYTES = 256, 256


def walked_product(lists, x, *, n):
    """Y [N, M] in float64 from x [K, M]; each output must be written once."""
    block = lists.values.shape[2]
    slabs, groups = lists.pointers.shape[0], n // block
    y = torch.full((n, x.shape[1]), torch.nan, dtype=torch.float64)
    for position in range(groups):
        group = position if lists.order is None else int(lists.order[position])
        sums = torch.zeros(block, x.shape[1], dtype=torch.float64)
        for slab in range(slabs):
            first, beyond = lists.pointers[slab, position : position + 2].tolist()
            for quad in range(first, beyond):
                for place, weights in zip((lists.places[quad].int() & 0xFFFF).tolist(), lists.values[quad].double()):
                    inner = place // SLOT_BYTES
                    assert place % SLOT_BYTES == inner % 16 * 16  # how the slot is swizzled
                    sums += weights[:, None] * x[slab * SLAB + inner]
        assert y[group * block : (group + 1) * block].isnan().all()
        y[group * block : (group + 1) * block] = sums
    return y
