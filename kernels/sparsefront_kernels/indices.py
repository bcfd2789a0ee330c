"""Index utilities of formats: kept positions in groups, permutations of inputs and outputs, pairing of tiles."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def places_of_kept(groups: Tensor, n: int, *, family: str) -> Tensor:
    """Positions of the kept weights within their groups.

    Args:
        groups: bool [N, groups, m], True = keep.
        n: maximum number of kept weights per group.
        family: named in the error.
    Returns:
        int64 [N, groups, n], ascending; groups that keep fewer are padded with their first pruned positions.
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


GROUP = 4  # neighboring inputs, two of which are kept


def packed_places(places: Tensor) -> Tensor:
    """Positions [..., groups, 2] → uint8 [..., ceil(groups / 2)]; an odd last group has a byte of its own.

    Bits 0-1 and 2-3 hold the positions of the first group of a byte, 4-5 and 6-7 those of the second.
    """
    nibbles = places[..., 0] | (places[..., 1] << 2)
    # fill the unused half byte with positions 0 and 1, so that every nibble is valid
    nibbles = pad(nibbles, (0, places.shape[-2] % 2), value=4).unflatten(-1, (-1, 2))
    return (nibbles[..., 0] | (nibbles[..., 1] << 4)).to(torch.uint8)


def unpacked_places(metadata: Tensor, groups: int) -> Tensor:
    """Inverse of `packed_places`: int64 [..., groups, 2]."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=metadata.device)
    places = (metadata[..., None] >> shifts) & 3  # [..., bytes, 4]
    return places.flatten(-2).unflatten(-1, (-1, 2))[..., :groups, :].long()


def permutation(name: str, order: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Convert an order to int64 [length] on the device; None stands for the identity.

    Args:
        name: for the message.
    Raises:
        ValueError: the order is not a permutation of 0 to length - 1.
    """
    if order is None:
        return torch.arange(length, device=device)
    if order.is_floating_point() or order.dtype == torch.bool or order.shape != (length,):
        raise ValueError(f"{name} must be {length} whole numbers, not {order.dtype} {list(order.shape)}")
    order = order.to(device=device, dtype=torch.int64)
    if not torch.equal(order.sort().values, torch.arange(length, device=device)):
        raise ValueError(f"{name} must hold each of 0 to {length - 1} once")
    return order


def stored_order(family: str, order: Tensor | None, length: int, device: torch.device) -> Tensor | None:
    """An input order as stored in formats: int32 [length] on the device, None for the identity."""
    if order is None:
        return None
    return permutation(f"{family}: input_order", order, length, device).to(torch.int32)


def check_stored_order(family: str, order: Tensor | None, length: int) -> None:
    """Raise ValueError unless a format's input order is None or an int32 permutation."""
    if order is None:
        return
    if order.dtype != torch.int32:
        raise ValueError(f"{family}: input_order must be int32, not {order.dtype}")
    permutation(f"{family}: input_order", order, length, order.device)


def columns_in_order(matrix: Tensor, order: Tensor | None) -> Tensor:
    """Permute the columns of [rows, K] by an order (int [K]); returns the matrix itself for None."""
    return matrix if order is None else matrix.index_select(1, order)


def columns_back(arranged: Tensor, order: Tensor | None) -> Tensor:
    """Inverse of `columns_in_order`."""
    if order is None:
        return arranged
    return torch.empty_like(arranged).index_copy_(1, order.long(), arranged)


def partners_of(kept: Tensor) -> Tensor:
    """Order the rows of kept [units, K] so that consecutive pairs share many inputs; int64 [units].

    Greedily, by descending number of kept inputs, each unit is paired with the free one that shares most. This also pairs units
    of similar size, which then do not wait for each other. Of an odd number the smallest is last, without a partner.
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
