"""`ell_sm90`, products with any number of rows of X: the ELL weight laid out for it, and its entry of the registry."""

import torch

from sparsefront_kernels.common.slab_entry import slab_entry
from sparsefront_kernels.common.slab_lists import SlabWeight, slab_lists
from sparsefront_kernels.ell.format import ELLFormat


def pack_for_sm90(stored: ELLFormat) -> SlabWeight:
    """Lay the weight out for the kernel on the format's device.

    A row of blocks is a group of outputs that keep the same inputs; their lists come in order, since all are equally long.
    """
    (n, k), b, device = stored.shape, stored.block, stored.device
    rows, count = stored.columns.shape
    inputs = (stored.columns.long() * b)[:, :, None] + torch.arange(b, device=device)  # [N / b, count, b]
    group = torch.arange(rows, device=device).repeat_interleave(count * b)
    values = stored.values.transpose(2, 3).reshape(-1, b)  # of an input, all outputs of the row of blocks
    return SlabWeight(n, k, slab_lists(group, inputs.flatten(), values, groups=rows, k=k, by_length=False))


ENTRY = slab_entry("ell", kernel="ell_sm90", version=2, pack=pack_for_sm90)
