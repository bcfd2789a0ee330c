"""Which units of outputs are computed together: those that share many inputs, so that X is loaded once for both."""

import torch
from torch import Tensor


def partners_of(kept: Tensor) -> Tensor:
    """An order of the rows of kept [units, K] in which each two that follow one another share many inputs; int64 [units].

    Each unit, those that keep most first, takes the free one that shares most inputs with it. That also puts units of about
    the same size together, which then do not wait for one another. Of an odd number the smallest stays alone at the end.
    """
    largest_first = kept.sum(dim=1).argsort(descending=True, stable=True)
    shared = kept[largest_first].float()
    shared = (shared @ shared.t()).cpu()
    free, partners = torch.ones(len(kept) - len(kept) % 2, dtype=torch.bool), []
    for unit in range(len(free)):
        if free[unit]:
            free[unit] = False
            partner = int(shared[unit, : len(free)].masked_fill(~free, -1).argmax())
            free[partner] = False
            partners += [unit, partner]
    partners += range(len(free), len(kept))
    return largest_first[torch.tensor(partners, dtype=torch.int64, device=kept.device)]
