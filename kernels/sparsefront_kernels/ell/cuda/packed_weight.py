"""The ELL weight laid out for many rows of X: lists of the blocks of each row of blocks."""

from dataclasses import dataclass

import torch

from sparsefront_kernels.common.slab_lists import SlabLists, slab_lists
from sparsefront_kernels.ell.format import ELLFormat


@dataclass(frozen=True, eq=False)
class ELLCudaPackedWeight:
    """What the kernel reads; a row of blocks is a group of outputs that keep the same inputs.

    Args:
        n, k: outputs and inputs of the weight.
        lists: of the rows of blocks, in order, since all are equally long.
    """

    n: int
    k: int
    lists: SlabLists


def pack_for_cuda(stored: ELLFormat) -> ELLCudaPackedWeight:
    """Lay the weight out for the kernel on the format's device."""
    (n, k), b, device = stored.shape, stored.block, stored.device
    rows, count = stored.columns.shape
    inputs = (stored.columns.long() * b)[:, :, None] + torch.arange(b, device=device)  # [N / b, count, b]
    group = torch.arange(rows, device=device).repeat_interleave(count * b)
    values = stored.values.transpose(2, 3).reshape(-1, b)  # of an input, all outputs of the row of blocks
    lists = slab_lists(group, inputs.flatten(), values, groups=rows, k=k, by_length=False)
    return ELLCudaPackedWeight(n, k, lists)
