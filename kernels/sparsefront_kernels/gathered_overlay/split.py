"""Which kept weights form tiles, and which are the single ones beside them."""

import torch
from torch import Tensor

LARGEST_GAPS = 16  # thresholds that are tried beside "every output that keeps anything"


def split_mask(mask: Tensor, tile: int) -> Tensor:
    """The part of a mask that tiles of `tile` outputs can hold; the rest of the mask is the overlay.

    An output is a member where it keeps at least t weights; members form tiles in ascending order, and a tile holds the
    inputs that all of its outputs keep. An overlay may have brought single weights back into outputs that tile-wise
    pruning had taken as a whole: counted as members they would shift all tiles behind them. Survivors keep far more
    weights than such outputs, so t is looked for in the widest gaps between the sorted counts, and at 1; of those tried
    the one that stores the fewest numbers wins, the lowest among equals. Where counts overlap, the split is still exact,
    only less compact.

    Args:
        mask: bool [N, K], True = keep.
        tile: outputs per tile.
    Returns:
        bool [N, K], within `mask`: the rows of a tile are equal.
    """
    counts = mask.sum(dim=1)
    tried = [_tiled(mask, counts >= threshold, tile) for threshold in _thresholds(counts)]
    stored = torch.stack([_stored_numbers(mask, tiled, tile) for tiled in tried])
    return tried[int(stored.argmin())]


def _thresholds(counts: Tensor) -> list[int]:
    """Counts that start a group of outputs, ascending: 1, and those above the widest gaps; ties to the lower."""
    present = torch.unique(counts[counts > 0])  # ascending
    if present.numel() == 0:
        return [1]
    widest = present.diff().sort(descending=True, stable=True).indices[:LARGEST_GAPS]
    return [1, *present[widest.sort().values + 1].tolist()]


def _tiled(mask: Tensor, members: Tensor, tile: int) -> Tensor:
    """What the members among the outputs (bool [N]) have in common, tile by tile; bool [N, K]."""
    rows = members.nonzero().flatten()
    result = torch.zeros_like(mask)
    if rows.numel() == 0:
        return result
    missing = -rows.numel() % tile  # the last tile may be narrower: its last output stands in for the others
    padded = mask[torch.cat([rows, rows[-1:].expand(missing)])]
    shared = padded.view(-1, tile, mask.shape[1]).all(dim=1)
    result[rows] = shared.repeat_interleave(tile, dim=0)[: rows.numel()]
    return result


def _stored_numbers(mask: Tensor, tiled: Tensor, tile: int) -> Tensor:
    """Values and indices of both parts: a weight in a tile shares its input's index, one of the overlay has its own."""
    members = tiled.any(dim=1)
    lists = tiled[members][::tile].sum()  # every tile's first output lists the tile's inputs
    in_tiles = tiled.sum()
    return in_tiles + lists + members.sum() + 2 * (mask.sum() - in_tiles)
