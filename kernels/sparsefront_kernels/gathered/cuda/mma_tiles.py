"""Which outputs and inputs the tensor cores multiply together: half tiles of 64 outputs, MMA tiles of 16 kept inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.common.indices import partners_of
from sparsefront_kernels.gathered.format import GatheredFormat

HALF = 64  # outputs of a half tile: those of one tensor-core instruction


MMA_TILE = 16  # kept inputs of one tensor-core instruction


K_BLOCK_MMA_TILES = 4  # MMA tiles that are loaded together


K_BLOCK = MMA_TILE * K_BLOCK_MMA_TILES  # kept inputs that are loaded together


RUN = 8  # outputs that stay neighbours: a row-major Y is written in runs of 16 bytes


@dataclass(frozen=True, eq=False)
class MmaTiles:
    """All MMA tiles, CTA tile by CTA tile in the order of loading.

    Args:
        cta_tile, place: of each MMA tile, and its place among those of its CTA tile.
        halves: 1, 2 or 3: bit h is set where half h keeps it.
        inputs: [MMA tiles, 16], -1 where not full.
    """

    cta_tile: Tensor
    place: Tensor
    halves: Tensor
    inputs: Tensor


def half_tiles(stored: GatheredFormat) -> tuple[Tensor, Tensor]:
    """An even number of half tiles: their outputs, int32 [halves, 64], and the inputs they keep, bool [halves, K].

    The outputs that are not stored form half tiles at the end that keep nothing.
    """
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    kept = torch.zeros(stored.tiles, k, dtype=torch.bool, device=device)
    tile_of = torch.repeat_interleave(torch.arange(stored.tiles, device=device), stored.tile_offsets.diff())
    kept[tile_of, stored.kept_inputs.long()] = True
    outputs = _in_halves(stored.output_index)
    if tile >= HALF:
        kept = kept[torch.arange(len(outputs), device=device) * HALF // tile]
    else:
        kept = pad(kept, (0, 0, 0, outputs.numel() // tile - len(kept)))
        outputs, kept = _united(outputs.view(-1, tile), kept)
    if tile <= HALF:  # an input that both halves of a CTA tile keep is loaded once
        order = partners_of(kept)
        outputs, kept = outputs[order], kept[order]
    owned = torch.zeros(n, dtype=torch.bool, device=device)
    owned[stored.output_index.long()] = True
    outputs = torch.cat([outputs, _in_halves((~owned).nonzero().flatten().to(torch.int32))])
    if len(outputs) % 2:
        outputs = pad(outputs, (0, 0, 0, 1), value=-1)
    return outputs, pad(kept, (0, 0, 0, len(outputs) - len(kept)))


def _united(outputs: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Narrow tiles, outputs [tiles, tile] and kept [tiles, K], two by two until they are half tiles."""
    while outputs.shape[1] < HALF:
        if outputs.shape[1] < RUN:
            partners = torch.arange(len(outputs), device=outputs.device).view(-1, 2)
        else:
            partners = partners_of(kept).view(-1, 2)
        outputs, kept = outputs[partners].flatten(1), kept[partners].any(dim=1)
    return outputs, kept


def mma_tiles_of(kept: Tensor, *, mixed: bool) -> MmaTiles:
    """Group the inputs of each CTA tile by the halves that keep them.

    Args:
        kept: bool [cta_tiles, 2, K].
        mixed: whether the last inputs of each group, which do not fill an MMA tile, may share one with those of the others.
            Halves then multiply by zeros where they do not keep an input, as united narrow tiles do anyway.
    """
    k = kept.shape[2]
    halves_of = kept[:, 0].long() + 2 * kept[:, 1].long()  # [cta_tiles, K]
    if mixed:
        halves_of = _with_rests_together(halves_of)
    cta_tile, inputs = halves_of.nonzero(as_tuple=True)
    kind = cta_tile * 4 + halves_of[cta_tile, inputs]
    by_kind = kind.argsort(stable=True)  # keeps inputs ascending within a kind
    kind, inputs = kind[by_kind], inputs[by_kind]
    count = torch.bincount(kind, minlength=4 * len(kept))
    rank = torch.arange(len(kind), device=kept.device) - (count.cumsum(0) - count)[kind]
    mma_tiles = -(-count // MMA_TILE)
    mma_tile = (mma_tiles.cumsum(0) - mma_tiles)[kind] + rank // MMA_TILE
    members = inputs.new_full((int(mma_tiles.sum()), MMA_TILE), -1)
    members[mma_tile, rank % MMA_TILE] = inputs
    mma_tile_kind = torch.repeat_interleave(torch.arange(len(count), device=kept.device), mma_tiles)
    mma_tile_cta_tile = mma_tile_kind // 4
    # all halves walk up along K together: rows of X stay in L2
    order = (mma_tile_cta_tile * k + members[:, 0]).argsort()
    mma_tile_cta_tile = mma_tile_cta_tile[order]
    per_cta_tile = torch.bincount(mma_tile_cta_tile, minlength=len(kept))
    place = torch.arange(len(order), device=kept.device) - (per_cta_tile.cumsum(0) - per_cta_tile)[mma_tile_cta_tile]
    return MmaTiles(cta_tile=mma_tile_cta_tile, place=place, halves=mma_tile_kind[order] % 4, inputs=members[order])


def _with_rests_together(halves_of: Tensor) -> Tensor:
    """halves_of [cta_tiles, K]: 3, as if both halves kept it, for what is left of each group where that saves an MMA tile."""
    of_kind = torch.stack([halves_of == kind for kind in (1, 2, 3)], dim=1)  # [cta_tiles, 3, K]
    count = of_kind.sum(dim=2)
    rests = count % MMA_TILE
    saves = -(-rests.sum(dim=1) // MMA_TILE) < (rests > 0).sum(dim=1)
    rest = (of_kind & (of_kind.cumsum(dim=2) > (count - rests)[:, :, None])).any(dim=1)
    return halves_of.masked_fill(rest & saves[:, None], 3)


def _in_halves(index: Tensor) -> Tensor:
    """[ceil(len / 64), 64], filled up with -1."""
    return pad(index, (0, -index.numel() % HALF), value=-1).view(-1, HALF)
