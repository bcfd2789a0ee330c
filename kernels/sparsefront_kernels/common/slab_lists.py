"""A weight laid out for kernels of which every lane owns rows of X: what a group of outputs keeps is a list of inputs.

The layout is that of cuda/slab_list.cuh.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SLAB = 256  # inputs that come into shared memory together
QUAD = 4  # kept inputs that are read at once
SPARE_QUADS = 2  # beyond the last list: the kernel reads so far ahead


@dataclass(frozen=True, eq=False)
class SlabLists:
    """A weight as lists, group after group in `order`, inputs ascending. Lists are filled up to whole quads by zero weights at
    their own last input, so that no output meets an input that it does not keep.

    Args:
        values: [quads + 2, 4, block] in the weight's dtype: what each of the group's outputs has at an input.
        places: int16 [quads + 2, 4], to be read as unsigned: the input mod 65536.
        pointers: int32 [groups, slabs + 1], in entries (a quad has four): where each slab of 256 inputs begins in a list, and
            the list's end.
        order: int32 [groups], the group that a list is of; those that keep most come first. None: groups in order.
    """

    values: Tensor
    places: Tensor
    pointers: Tensor
    order: Tensor | None

    @property
    def quads(self) -> int:
        """Of all lists."""
        return self.values.shape[0] - SPARE_QUADS


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
    slabs = -(-k // SLAB)
    order = torch.bincount(group, minlength=groups).argsort(descending=True, stable=True) if by_length else None
    position = group if order is None else order.argsort()[group]
    by_list = position.argsort(stable=True)  # inputs still ascend within each
    position, inputs, values = position[by_list], inputs[by_list], values[by_list]
    kept = torch.bincount(position, minlength=groups)
    length = (kept + QUAD - 1) // QUAD * QUAD
    first = length.cumsum(0) - length
    entries = int(length.sum())
    target = first[position] + torch.arange(len(values), device=device) - (kept.cumsum(0) - kept)[position]
    stored = values.new_zeros(entries + SPARE_QUADS * QUAD, block)
    stored[target] = values
    places = inputs.new_zeros(len(stored))
    places[:entries] = torch.repeat_interleave(
        inputs[(kept.cumsum(0) - 1)[kept > 0]], length[kept > 0]
    )  # of each list the last
    places[target] = inputs
    places = places % 2**16
    of_slab = torch.bincount(position * slabs + inputs // SLAB, minlength=groups * slabs).view(groups, slabs)
    pointers = torch.cat([first[:, None], first[:, None] + of_slab.cumsum(1)], dim=1)
    at_end = pointers == (first + kept)[:, None]  # of slabs after the last input too: what fills up is at that input
    pointers = torch.where(at_end, (first + length)[:, None], pointers)
    return SlabLists(
        values=stored.view(-1, QUAD, block),
        places=torch.where(places >= 2**15, places - 2**16, places).to(torch.int16).view(-1, QUAD),
        pointers=pointers.to(torch.int32),
        order=None if order is None else order.to(torch.int32),
    )
