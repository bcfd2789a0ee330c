"""Where the kept weights of groups of neighbors are."""

import torch
from torch import Tensor


def places_of_kept(groups: Tensor, n: int, *, family: str) -> Tensor:
    """Places of the kept weights within their groups.

    Args:
        groups: bool [N, groups, m], True = keep.
        n: at most this many are kept in a group.
        family: named in the error.
    Returns:
        int64 [N, groups, n], ascending; a group that keeps fewer fills up with its first pruned places.
    Raises:
        ValueError: a group keeps more than n.
    """
    counts = groups.sum(dim=2)
    if (counts > n).any():
        output, group = (counts > n).nonzero()[0].tolist()
        raise ValueError(
            f"{family}: output {output} keeps {int(counts[output, group])} weights in group {group}, at most {n} of "
            f"{groups.shape[2]} are allowed; {int((counts > n).sum())} groups are like that"
        )
    pruned_so_far = (~groups).cumsum(dim=2)
    chosen = groups | (~groups & (pruned_so_far <= (n - counts)[..., None]))  # exactly n per group
    places = torch.arange(groups.shape[2], device=groups.device).expand_as(groups)
    return places[chosen].view(*groups.shape[:2], n)
