"""A weight laid out for kernels of which every lane owns rows of X: what a group of outputs keeps of a slab of inputs is a list.

The layout is that of cuda/slab_kernel.cuh.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SLAB = 256  # inputs, whose rows are in shared memory at a time
QUAD = 4  # kept inputs that are read at once
SLOT_BYTES = 256  # of rows of X of an input
UNITS = 16  # of 16 bytes, in a slot


@dataclass(frozen=True, eq=False)
class SlabLists:
    """A weight as lists, slab after slab; within a slab in `order`. Lists are filled up to whole quads by zero weights at
    their own last input, so that no output meets an input that it does not keep.

    Args:
        values: [quads, 4, block] in the weight's dtype: what each of the group's outputs has at an input.
        places: int16 [quads, 4], to be read as unsigned: where the input's slot begins, and how it is swizzled.
        pointers: int32 [slabs, groups + 1], first quad of each list.
        order: int32 [groups], the group that a list is of; those that keep most come first. None: groups in order.
    """

    values: Tensor
    places: Tensor
    pointers: Tensor
    order: Tensor | None


@dataclass(frozen=True, eq=False)
class SlabWeight:
    """What such a kernel reads.

    Args:
        n, k: outputs and inputs of the weight.
        lists: of its groups of outputs.
    """

    n: int
    k: int
    lists: SlabLists


def slab_lists(group: Tensor, inputs: Tensor, values: Tensor, *, groups: int, k: int, by_length: bool) -> SlabLists:
    """Lay out kept inputs of groups of outputs.

    Args:
        group, inputs: int [kept], group after group, inputs ascending within one.
        values: [kept, block].
        groups, k: how many groups and inputs there are.
        by_length: whether groups that keep most come first, so that blocks and warps share the work evenly.
    """
    device, block = values.device, values.shape[1]
    slabs = -(-k // SLAB) if len(values) else 0
    order = torch.bincount(group, minlength=groups).argsort(descending=True, stable=True) if by_length else None
    position = group if order is None else order.argsort()[group]
    of_list = inputs // SLAB * groups + position  # lists are numbered slab by slab
    by_list = of_list.argsort(stable=True)  # inputs still ascend within each
    of_list, inputs, values = of_list[by_list], inputs[by_list], values[by_list]
    kept = torch.bincount(of_list, minlength=slabs * groups)
    quads = (kept + QUAD - 1) // QUAD
    first = quads.cumsum(0) - quads
    total = int(quads.sum())
    rank = torch.arange(len(values), device=device) - (kept.cumsum(0) - kept)[of_list]
    target = first[of_list] * QUAD + rank
    stored = values.new_zeros(total * QUAD, block)
    stored[target] = values
    last = torch.repeat_interleave(inputs[(kept.cumsum(0) - 1)[kept > 0]], quads[kept > 0] * QUAD)  # of each list
    last[target] = inputs
    in_slab = last % SLAB
    places = in_slab * SLOT_BYTES + in_slab % UNITS * (SLOT_BYTES // UNITS)
    starts = torch.cat([first, first.new_full((1,), total)])
    ends = starts[(torch.arange(slabs, device=device) + 1) * groups]
    return SlabLists(
        values=stored.view(total, QUAD, block),
        places=torch.where(places >= 2**15, places - 2**16, places).to(torch.int16).view(total, QUAD),
        pointers=torch.cat([first.view(slabs, groups), ends[:, None]], dim=1).to(torch.int32),
        order=None if order is None else order.to(torch.int32),
    )
