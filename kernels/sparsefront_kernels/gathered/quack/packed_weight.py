"""The gathered weight laid out for QuACK: a group for each tile, of one width, whose lists end at whole k-blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered.quack.library import K_BLOCK

WIDTH_MULTIPLE = 8  # outputs of a tile: rows of B begin at 16 bytes


@dataclass(frozen=True, eq=False)
class QuackPackedWeight:
    """What QuACK reads.

    The narrow last tile has columns of zeros up to the full width. A tile's list is repeated at its last input, with zeros
    for weights, up to a whole number of k-blocks: these are computed anyhow, and no k-block is then read in part.

    Args:
        n, k: outputs and inputs of the weight.
        panels: [all kept, width], row-major.
        kept: int32 [all kept].
        offsets: int32 [tiles + 1]; tile t's are kept[offsets[t] : offsets[t + 1]].
        order: int32 [tiles], most kept inputs first; None where all keep equally many.
        outputs: int32 [stored outputs]; row i of the product, tile by tile, is output outputs[i].
        rows: int32 [n]: where output i is found among the rows of the product; tiles · width where it is not stored.
        consecutive: whether the first n rows of the product are the outputs in their own order.
    """

    n: int
    k: int
    panels: Tensor
    kept: Tensor
    offsets: Tensor
    order: Tensor | None
    outputs: Tensor
    rows: Tensor
    consecutive: bool


def tile_unsupported_reason(tile: int) -> str | None:
    """Why tiles of this many outputs cannot be groups, or None."""
    if tile % WIDTH_MULTIPLE == 0:
        return None
    return f"takes tiles whose outputs are a multiple of {WIDTH_MULTIPLE}, not {tile}"


def pack_for_quack(stored: GatheredFormat) -> QuackPackedWeight:
    """Lay the weight out on the format's device.

    Raises:
        ValueError: tiles that `tile_unsupported_reason` rejects.
    """
    if reason := tile_unsupported_reason(stored.tile):
        raise ValueError(f"gathered: {reason}")
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    panels, lists = [stored.values.new_empty(0, tile)], [stored.kept_inputs[:0]]
    for outputs, inputs, panel in stored.panels():
        more = -len(inputs) % K_BLOCK
        panels.append(pad(panel, (0, tile - len(outputs), 0, more)))
        lists += [inputs, inputs[-1:].expand(more)]
    counts = (stored.tile_offsets.diff() + K_BLOCK - 1) // K_BLOCK * K_BLOCK
    uneven = stored.tiles > 1 and int(counts.min()) != int(counts.max())
    rows = torch.full((n,), stored.tiles * tile, dtype=torch.int32, device=device)
    rows[stored.output_index.long()] = torch.arange(len(stored.output_index), dtype=torch.int32, device=device)
    return QuackPackedWeight(
        n=n,
        k=k,
        panels=torch.cat(panels),
        kept=torch.cat(lists),
        offsets=pad(counts.cumsum(0), (1, 0)).to(torch.int32),
        order=counts.argsort(descending=True, stable=True).to(torch.int32) if uneven else None,
        outputs=stored.output_index,
        rows=rows,
        consecutive=stored.consecutive,
    )


def dense_weight(panels: Tensor, kept: Tensor, offsets: Tensor, rows: Tensor, k: int) -> Tensor:
    """W [N, K] from tensors of `QuackPackedWeight`, without a look at their contents from the host."""
    tiles, width = len(offsets) - 1, panels.shape[1]
    place = torch.arange(len(kept), device=panels.device)
    tile = torch.searchsorted(offsets.long(), place, right=True) - 1
    row = tile[:, None] * width + torch.arange(width, device=panels.device)
    dense = panels.new_zeros(tiles * width + 1, k)  # what is not stored is found in the last row
    # a list repeats its last input at weights of zero: added up, these leave the weight as it is
    dense = dense.index_put((row, kept.long()[:, None]), panels, accumulate=True)
    return dense[rows.long()]
