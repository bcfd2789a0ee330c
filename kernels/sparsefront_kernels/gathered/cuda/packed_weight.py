"""The gathered weight laid out for the Hopper kernel: CTA tiles of two halves, rows of X in MMA tiles, swizzled panels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.common.wgmma_layout import is_halved, swizzled, whole_panels
from sparsefront_kernels.gathered.cuda.mma_tiles import (
    HALF,
    K_BLOCK,
    K_BLOCK_MMA_TILES,
    MMA_TILE,
    half_tiles,
    mma_tiles_of,
)
from sparsefront_kernels.gathered.format import GatheredFormat


@dataclass(frozen=True, eq=False)
class CudaPackedWeight:
    """What the Hopper kernel reads.

    64 outputs form a half tile: a part of a wide tile, or several narrow tiles, whose lists are united and whose panels
    hold zeros where a tile does not keep an input; tiles that share many inputs are put together. Two half tiles are a
    CTA tile, which one block of the grid computes. Each input of a CTA tile is kept by half 0, by half 1 or by both. Inputs
    of one kind are grouped by 16 into MMA tiles. The MMA tiles of a CTA tile are sorted by their first input; four of them are
    a k-block, which is loaded at once.

    Args:
        n, k: outputs and inputs of the weight.
        panels: [MMA tiles of half tiles, 16, 64] in the weight's dtype. Of a row's eight chunks of eight outputs, chunk
            c lies at place c ^ (row % 8), as the tensor cores' 128-byte swizzle has it. A CTA tile's MMA tiles of half 0
            come first, then those of half 1. Or, where they hold two of every four inputs, [panels of k-blocks, 2304] as
            `common.halved_panels` makes them; a half then uses all MMA tiles of a k-block or none.
        k_blocks: int32 [k_blocks, 68]: the 64 inputs of a k-block, -1 where an MMA tile is not full; then which half keeps which
            MMA tile (bit g is set where half 0 keeps MMA tile g, bit 4 + g where half 1 does); then where in `panels` its
            MMA tiles of half 0 and of half 1 begin; then padding.
        cta_tiles: int32 [cta_tiles, 2]: first k-block and number of k-blocks, at least 1; most k-blocks first, so that long
            CTA tiles do not start last.
        k_blocks_of_each: where all CTA tiles have equally many k-blocks, or some one more, how many; else 0. CTA tiles begin
            one after the other, so that where each begins need not be looked up.
        outputs: int32 [cta_tiles, 128]; -1 where a half tile is not full.
        whole_runs: whether each eight of `outputs` from a multiple of eight on are eight neighbours, of which the first is
            a multiple of 8, or eight times -1. Rows of a row-major Y can then be written 16 bytes at a time.
        lengths: of each CTA tile the k-blocks that hold any input; as in `cta_tiles`, but 0 where all outputs are pruned.
        compact: int32 [cta_tiles that keep inputs, 128], `outputs` with the places in this table instead, where only what is
            computed is written, side by side.
        place: int32 [N], where each output is in `compact`, or -1.
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
    place: Tensor


def tile_unsupported_reason(tile: int) -> str | None:
    """Why half tiles cannot be cut from tiles of this width, or None."""
    if tile % HALF == 0 or HALF % tile == 0:
        return None
    return f"takes tiles that divide {HALF} or are multiples of it, not tiles of {tile} outputs"


def pack_for_sm90(stored: GatheredFormat) -> CudaPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Raises:
        ValueError: a tile width that `tile_unsupported_reason` rejects.
    """
    if reason := tile_unsupported_reason(stored.tile):
        raise ValueError(f"gathered: {reason}")
    outputs, kept = half_tiles(stored)
    outputs, kept = outputs.view(-1, 2 * HALF), kept.view(-1, 2, kept.shape[1])
    mma_tiles = mma_tiles_of(kept, mixed=stored.tile < HALF)
    count = torch.bincount(mma_tiles.cta_tile, minlength=len(outputs))  # MMA tiles per CTA tile
    lengths = (-(-count // K_BLOCK_MMA_TILES)).clamp(min=1)
    order = count.argsort(descending=True, stable=True)
    first_k_block = torch.empty_like(lengths)
    first_k_block[order] = lengths[order].cumsum(0) - lengths[order]
    k_block = first_k_block[mma_tiles.cta_tile] + mma_tiles.place // K_BLOCK_MMA_TILES
    place = mma_tiles.place % K_BLOCK_MMA_TILES
    k_blocks = torch.full((int(lengths.sum()), K_BLOCK + 4), -1, dtype=torch.int64, device=kept.device)
    k_blocks[:, :K_BLOCK].view(-1, K_BLOCK_MMA_TILES, MMA_TILE)[k_block, place] = mma_tiles.inputs
    used = ((mma_tiles.halves & 1) << place) | ((mma_tiles.halves >> 1) << (place + K_BLOCK_MMA_TILES))
    k_blocks[:, K_BLOCK] = 0
    k_blocks[:, K_BLOCK].index_add_(0, k_block, used)
    owner = torch.cat([mma_tiles.cta_tile * 2 + half for half in range(2)])  # of what each panel MMA tile belongs to
    chosen = torch.cat([(mma_tiles.halves >> half) & 1 for half in range(2)]).bool().nonzero().flatten()
    chosen = chosen[owner[chosen].argsort(stable=True)]
    for half in range(2):  # where the panel MMA tiles of each k-block begin
        ours = (owner[chosen] % 2 == half).nonzero().flatten()
        begins = torch.full((len(k_blocks),), len(chosen), dtype=torch.int64, device=kept.device)
        begins.scatter_reduce_(0, k_block.repeat(2)[chosen[ours]], ours, "amin")
        k_blocks[:, K_BLOCK + 1 + half] = begins
    cta_tiles = torch.stack([first_k_block, lengths], dim=1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    compact, place = side_by_side(outputs[order][: int((count > 0).sum())], stored.shape[0])
    return CudaPackedWeight(
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
        place=place,
    )


def dense_weight(panels: Tensor, k_blocks: Tensor, cta_tiles: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """W [N, K] from tensors of `CudaPackedWeight`, without a look at their contents from the host."""
    device = panels.device
    first_k_blocks, by_place = cta_tiles[:, 0].sort()
    k_block = torch.arange(k_blocks.shape[0], device=device, dtype=first_k_blocks.dtype)
    cta_tile = by_place[torch.searchsorted(first_k_blocks, k_block, right=True) - 1]  # of each k-block
    if is_halved(panels):
        return _halved_dense_weight(panels, k_blocks, outputs.view(-1, 2, HALF)[cta_tile].long(), n, k)
    bit = torch.arange(2 * K_BLOCK_MMA_TILES, device=device)
    used = ((k_blocks[:, K_BLOCK, None] >> bit) & 1).view(-1, 2, K_BLOCK_MMA_TILES)  # [k_blocks, half, MMA tile]
    panel = k_blocks[:, K_BLOCK + 1 : K_BLOCK + 3, None] + used.cumsum(dim=2) - used  # where its weights are
    unused = used[..., None] == 0
    inputs = k_blocks[:, None, :K_BLOCK].view(-1, 1, K_BLOCK_MMA_TILES, MMA_TILE).masked_fill(unused, -1)
    of_halves = outputs.view(-1, 2, 1, HALF)[cta_tile].expand(-1, -1, K_BLOCK_MMA_TILES, -1).masked_fill(unused, -1)
    spare = panels.new_zeros(1, MMA_TILE, HALF)  # for MMA tiles that a half does not use
    weights = swizzled(torch.cat([panels, spare]))[panel]  # [k_blocks, half, MMA tile, 16, 64]
    dense = panels.new_zeros(n + 1, k + 1)  # what belongs to output or input -1 goes to the last row or column
    dense[of_halves.long()[..., None, :], inputs.long()[..., :, None]] = weights
    return dense[:n, :k]


def _halved_dense_weight(panels: Tensor, k_blocks: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """As `dense_weight`, from halved panels and the outputs [k_blocks, 2, 64] of each k-block's halves."""
    used = torch.stack([k_blocks[:, K_BLOCK] & 1, k_blocks[:, K_BLOCK] >> K_BLOCK_MMA_TILES & 1], dim=1) != 0
    panel = torch.where(used, k_blocks[:, K_BLOCK + 1 : K_BLOCK + 3], len(panels)).long()
    weights = torch.cat([whole_panels(panels), panels.new_zeros(1, HALF, K_BLOCK)])[panel]  # [k_blocks, 2, 64, 64]
    inputs = k_blocks[:, None, :K_BLOCK].long().masked_fill(~used[..., None], -1)
    dense = panels.new_zeros(n + 1, k + 1)  # what belongs to output or input -1 goes to the last row or column
    dense[outputs.masked_fill(~used[..., None], -1)[..., :, None], inputs[..., None, :]] = weights
    return dense[:n, :k]


def side_by_side(outputs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`compact` and `place` of `CudaPackedWeight`, for the outputs of CTA tiles that keep inputs."""
    slots = torch.arange(outputs.numel(), dtype=torch.int32, device=outputs.device)
    flat = outputs.flatten().long()
    place = torch.full((n,), -1, dtype=torch.int32, device=outputs.device)
    place[flat[flat >= 0]] = slots[flat >= 0]
    return slots.masked_fill(flat < 0, -1).view_as(outputs), place


def in_whole_runs(outputs: Tensor) -> bool:
    runs = outputs.view(-1, 8)
    first = runs[:, :1]
    follow = (runs == first + torch.arange(8, device=runs.device)).all(dim=1) & (first[:, 0] % 8 == 0)
    return bool((follow | (runs == -1).all(dim=1)).all())


def _panels(weight: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
    """[MMA tiles, 16, 64], swizzled, from weight [N, K], outputs [MMA tiles, 64] and inputs [MMA tiles, 16]."""
    outputs, inputs = outputs.long()[:, None, :], inputs[:, :, None]
    panels = weight[outputs.clamp(min=0), inputs.clamp(min=0)] * ((outputs >= 0) & (inputs >= 0))
    return swizzled(panels)
