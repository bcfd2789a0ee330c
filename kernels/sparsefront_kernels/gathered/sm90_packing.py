"""Packing for `gathered_sm90`: CTA tiles of two half tiles, rows of X in MMA tiles, swizzled panels."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda.wgmma_layout import is_halved, swizzled, whole_panels
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.indices import partners_of

HALF = 64  # outputs per half tile, as in a tensor core instruction
MMA_TILE = 16  # kept inputs per tensor core instruction
K_BLOCK_MMA_TILES = 4  # MMA tiles loaded together
K_BLOCK = MMA_TILE * K_BLOCK_MMA_TILES  # kept inputs loaded together
RUN = 8  # outputs that stay neighbors: a row-major Y is written 16 bytes at a time


@dataclass(frozen=True, eq=False)
class Sm90PackedWeight:
    """The packed weight of both `gathered_sm90` kernels.

    64 outputs form a half tile: a part of a wide tile, or several narrow tiles that share many inputs, with merged lists and
    zero-filled panels. Two half tiles form a CTA tile, computed by one block. Each input of a CTA tile is kept by half 0, half
    1 or both; inputs of the same kind are grouped by 16 into MMA tiles. The MMA tiles of a CTA tile are sorted by their first
    input; four of them form a k-block, which is loaded at once.

    Args:
        n, k: outputs and inputs of the weight.
        panels: [MMA tiles of half tiles, 16, 64] in the weight's dtype. Chunk c of a row's eight chunks of eight outputs is at
            c ^ (row % 8), the tensor cores' 128-byte swizzle. A CTA tile's MMA tiles of half 0 come first, then those of
            half 1. For two of every four inputs: [panels of k-blocks, 2304] from `wgmma_layout.halved_panels`; a half then uses
            all MMA tiles of a k-block or none.
        k_blocks: int32 [k_blocks, 68]: the 64 inputs of a k-block, padded with -1; then a bit mask (bit g: half 0 keeps MMA
            tile g, bit 4 + g: half 1 does); then offsets in `panels` of its MMA tiles of half 0 and of half 1; padding.
        cta_tiles: int32 [cta_tiles, 2]: first k-block and number of k-blocks, at least 1; longest first, so that long CTA
            tiles do not start last.
        k_blocks_of_each: number of k-blocks if all CTA tiles have equally many, or some one more; else 0. CTA tiles are then
            consecutive, so that kernels need not look up where each begins.
        outputs: int32 [cta_tiles, 128], padded with -1.
        whole_runs: whether each aligned group of eight `outputs` is eight neighbors starting at a multiple of 8, or all -1.
            Rows of a row-major Y can then be written 16 bytes at a time.
        lengths: number of nonempty k-blocks of each CTA tile; as in `cta_tiles`, but 0 if all outputs are pruned.
        compact: int32 [nonempty cta_tiles, 128], positions of `outputs` if only computed outputs are written, compactly.
        compact_index: int32 [N], position of each output in `compact`, or -1.
    """

    n: int
    k: int
    panels: Tensor
    k_blocks: Tensor
    cta_tiles: Tensor
    outputs: Tensor
    k_blocks_of_each: int
    whole_runs: bool
    lengths: tuple[int, ...]
    compact: Tensor
    compact_index: Tensor


def tile_unsupported_reason(tile: int) -> str | None:
    """Why half tiles cannot be cut from tiles of this width, or None."""
    if tile % HALF == 0 or HALF % tile == 0:
        return None
    return f"takes tiles that divide {HALF} or are multiples of it, not tiles of {tile} outputs"


def pack_for_sm90(stored: GatheredFormat) -> Sm90PackedWeight:
    """Pack the weight, on the format's device.

    Raises:
        ValueError: `tile_unsupported_reason` rejects the tile width.
    """
    reason = tile_unsupported_reason(stored.tile)
    if reason:
        raise ValueError(f"gathered: {reason}")
    outputs, keeps = _half_tiles(stored)
    outputs, keeps = outputs.view(-1, 2 * HALF), keeps.view(-1, 2, keeps.shape[1])
    mma_tiles = _mma_tiles_of(keeps, mixed=stored.tile < HALF)
    count = torch.bincount(mma_tiles.cta_tile, minlength=len(outputs))  # MMA tiles per CTA tile
    lengths = (-(-count // K_BLOCK_MMA_TILES)).clamp(min=1)
    order = count.argsort(descending=True, stable=True)
    first_k_block = torch.empty_like(lengths)
    first_k_block[order] = lengths[order].cumsum(0) - lengths[order]
    k_block = first_k_block[mma_tiles.cta_tile] + mma_tiles.position // K_BLOCK_MMA_TILES
    position = mma_tiles.position % K_BLOCK_MMA_TILES
    k_blocks = torch.full((int(lengths.sum()), K_BLOCK + 4), -1, dtype=torch.int64, device=keeps.device)
    k_blocks[:, :K_BLOCK].view(-1, K_BLOCK_MMA_TILES, MMA_TILE)[k_block, position] = mma_tiles.inputs
    used = ((mma_tiles.halves & 1) << position) | ((mma_tiles.halves >> 1) << (position + K_BLOCK_MMA_TILES))
    k_blocks[:, K_BLOCK] = 0
    k_blocks[:, K_BLOCK].index_add_(0, k_block, used)
    owner = torch.cat([mma_tiles.cta_tile * 2 + half for half in range(2)])  # half tile of each panel MMA tile
    chosen = torch.cat([(mma_tiles.halves >> half) & 1 for half in range(2)]).bool().nonzero().flatten()
    chosen = chosen[owner[chosen].argsort(stable=True)]
    for half in range(2):  # start of the panel MMA tiles of each k-block
        ours = (owner[chosen] % 2 == half).nonzero().flatten()
        begins = torch.full((len(k_blocks),), len(chosen), dtype=torch.int64, device=keeps.device)
        begins.scatter_reduce_(0, k_block.repeat(2)[chosen[ours]], ours, "amin")
        k_blocks[:, K_BLOCK + 1 + half] = begins
    cta_tiles = torch.stack([first_k_block, lengths], dim=1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    compact, compact_index = side_by_side(outputs[order][: int((count > 0).sum())], stored.shape[0])
    return Sm90PackedWeight(
        n=stored.shape[0],
        k=stored.shape[1],
        panels=_panels(stored.to_dense(), outputs.view(-1, HALF)[owner[chosen]], mma_tiles.inputs.repeat(2, 1)[chosen]),
        k_blocks=k_blocks.to(torch.int32),
        cta_tiles=cta_tiles[order].to(torch.int32),
        outputs=outputs[order],
        k_blocks_of_each=shortest if longest - shortest <= 1 else 0,
        whole_runs=in_whole_runs(outputs),
        lengths=tuple((-(-count[order] // K_BLOCK_MMA_TILES)).tolist()),
        compact=compact,
        compact_index=compact_index,
    )


def side_by_side(outputs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`compact` and `compact_index` of `Sm90PackedWeight`, for the outputs of nonempty CTA tiles."""
    slots = torch.arange(outputs.numel(), dtype=torch.int32, device=outputs.device)
    flat = outputs.flatten().long()
    index = torch.full((n,), -1, dtype=torch.int32, device=outputs.device)
    index[flat[flat >= 0]] = slots[flat >= 0]
    return slots.masked_fill(flat < 0, -1).view_as(outputs), index


def in_whole_runs(outputs: Tensor) -> bool:
    """`whole_runs` of `Sm90PackedWeight`."""
    runs = outputs.view(-1, RUN)
    first = runs[:, :1]
    follow = (runs == first + torch.arange(RUN, device=runs.device)).all(dim=1) & (first[:, 0] % RUN == 0)
    return bool((follow | (runs == -1).all(dim=1)).all())


def _panels(weight: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
    """[MMA tiles, 16, 64], swizzled, from weight [N, K], outputs [MMA tiles, 64] and inputs [MMA tiles, 16]."""
    outputs, inputs = outputs.long()[:, None, :], inputs[:, :, None]
    panels = weight[outputs.clamp(min=0), inputs.clamp(min=0)] * ((outputs >= 0) & (inputs >= 0))
    return swizzled(panels)


def _half_tiles(stored: GatheredFormat) -> tuple[Tensor, Tensor]:
    """An even number of half tiles: their outputs, int32 [halves, 64], and the inputs they keep, bool [halves, K].

    Outputs that are not stored form half tiles at the end that keep nothing.
    """
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    keeps = torch.zeros(stored.tiles, k, dtype=torch.bool, device=device)
    tile_of = torch.repeat_interleave(torch.arange(stored.tiles, device=device), stored.tile_offsets.diff())
    keeps[tile_of, stored.kept_inputs.long()] = True
    outputs = _in_halves(stored.output_index)
    if tile >= HALF:
        keeps = keeps[torch.arange(len(outputs), device=device) * HALF // tile]
    else:
        keeps = pad(keeps, (0, 0, 0, outputs.numel() // tile - len(keeps)))
        outputs, keeps = _united(outputs.view(-1, tile), keeps)
    if tile <= HALF:  # inputs kept by both halves of a CTA tile are loaded once
        order = partners_of(keeps)
        outputs, keeps = outputs[order], keeps[order]
    owned = torch.zeros(n, dtype=torch.bool, device=device)
    owned[stored.output_index.long()] = True
    outputs = torch.cat([outputs, _in_halves((~owned).nonzero().flatten().to(torch.int32))])
    if len(outputs) % 2:
        outputs = pad(outputs, (0, 0, 0, 1), value=-1)
    return outputs, pad(keeps, (0, 0, 0, len(outputs) - len(keeps)))


def _united(outputs: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Merge narrow tiles, outputs [tiles, tile] and kept [tiles, K], pairwise until they are half tiles."""
    while outputs.shape[1] < HALF:
        if outputs.shape[1] < RUN:
            partners = torch.arange(len(outputs), device=outputs.device).view(-1, 2)
        else:
            partners = partners_of(kept).view(-1, 2)
        outputs, kept = outputs[partners].flatten(1), kept[partners].any(dim=1)
    return outputs, kept


@dataclass(frozen=True, eq=False)
class _MmaTiles:
    """All MMA tiles, sorted by CTA tile and loading order.

    Args:
        cta_tile, position: of each MMA tile, and its position within its CTA tile.
        halves: 1, 2 or 3: bit h is set if half h keeps it.
        inputs: [MMA tiles, 16], padded with -1.
    """

    cta_tile: Tensor
    position: Tensor
    halves: Tensor
    inputs: Tensor


def _mma_tiles_of(kept: Tensor, *, mixed: bool) -> _MmaTiles:
    """Group the inputs of each CTA tile by the halves that keep them.

    Args:
        kept: bool [cta_tiles, 2, K].
        mixed: whether the remaining inputs of all groups may share an MMA tile. Halves then multiply by zeros for inputs
            they do not keep, as merged narrow tiles do anyway.
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
    # both halves advance along K together, so that rows of X stay in L2
    order = (mma_tile_cta_tile * k + members[:, 0]).argsort()
    mma_tile_cta_tile = mma_tile_cta_tile[order]
    per_cta_tile = torch.bincount(mma_tile_cta_tile, minlength=len(kept))
    position = torch.arange(len(order), device=kept.device) - (per_cta_tile.cumsum(0) - per_cta_tile)[mma_tile_cta_tile]
    return _MmaTiles(
        cta_tile=mma_tile_cta_tile, position=position, halves=mma_tile_kind[order] % 4, inputs=members[order]
    )


def _with_rests_together(halves_of: Tensor) -> Tensor:
    """halves_of [cta_tiles, K], with the remainders of all groups set to 3 (both halves) if that saves an MMA tile."""
    of_kind = torch.stack([halves_of == kind for kind in (1, 2, 3)], dim=1)  # [cta_tiles, 3, K]
    count = of_kind.sum(dim=2)
    rests = count % MMA_TILE
    saves = -(-rests.sum(dim=1) // MMA_TILE) < (rests > 0).sum(dim=1)
    rest = (of_kind & (of_kind.cumsum(dim=2) > (count - rests)[:, :, None])).any(dim=1)
    return halves_of.masked_fill(rest & saves[:, None], 3)


def _in_halves(index: Tensor) -> Tensor:
    """[ceil(len / 64), 64], padded with -1."""
    return pad(index, (0, -index.numel() % HALF), value=-1).view(-1, HALF)


def dense_weight(packed: Sm90PackedWeight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    panels, k_blocks, outputs, n, k = packed.panels, packed.k_blocks, packed.outputs, packed.n, packed.k
    device = panels.device
    first_k_blocks, by_first = packed.cta_tiles[:, 0].sort()
    k_block = torch.arange(k_blocks.shape[0], device=device, dtype=first_k_blocks.dtype)
    cta_tile = by_first[torch.searchsorted(first_k_blocks, k_block, right=True) - 1]  # of each k-block
    if is_halved(panels):
        return _halved_dense_weight(panels, k_blocks, outputs.view(-1, 2, HALF)[cta_tile].long(), n, k)
    bit = torch.arange(2 * K_BLOCK_MMA_TILES, device=device)
    used = ((k_blocks[:, K_BLOCK, None] >> bit) & 1).view(-1, 2, K_BLOCK_MMA_TILES)  # [k_blocks, half, MMA tile]
    panel = k_blocks[:, K_BLOCK + 1 : K_BLOCK + 3, None] + used.cumsum(dim=2) - used  # index of its weights
    unused = used[..., None] == 0
    inputs = k_blocks[:, None, :K_BLOCK].view(-1, 1, K_BLOCK_MMA_TILES, MMA_TILE).masked_fill(unused, -1)
    of_halves = outputs.view(-1, 2, 1, HALF)[cta_tile].expand(-1, -1, K_BLOCK_MMA_TILES, -1).masked_fill(unused, -1)
    spare = panels.new_zeros(1, MMA_TILE, HALF)  # for MMA tiles that a half does not use
    weights = swizzled(torch.cat([panels, spare]))[panel]  # [k_blocks, half, MMA tile, 16, 64]
    dense = panels.new_zeros(n + 1, k + 1)  # the last row and column take padding (output or input -1)
    dense[of_halves.long()[..., None, :], inputs.long()[..., :, None]] = weights
    return dense[:n, :k]


def _halved_dense_weight(panels: Tensor, k_blocks: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """Like `dense_weight`, from halved panels and the outputs [k_blocks, 2, 64] of each k-block's halves."""
    used = torch.stack([k_blocks[:, K_BLOCK] & 1, k_blocks[:, K_BLOCK] >> K_BLOCK_MMA_TILES & 1], dim=1) != 0
    panel = torch.where(used, k_blocks[:, K_BLOCK + 1 : K_BLOCK + 3], len(panels)).long()
    weights = torch.cat([whole_panels(panels), panels.new_zeros(1, HALF, K_BLOCK)])[panel]  # [k_blocks, 2, 64, 64]
    inputs = k_blocks[:, None, :K_BLOCK].long().masked_fill(~used[..., None], -1)
    dense = panels.new_zeros(n + 1, k + 1)  # the last row and column take padding (output or input -1)
    dense[outputs.masked_fill(~used[..., None], -1)[..., :, None], inputs[..., None, :]] = weights
    return dense[:n, :k]
