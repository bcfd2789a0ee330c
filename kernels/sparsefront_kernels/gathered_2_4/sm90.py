"""`gathered_2_4_sm90`: the persistent kernel of `gathered_sm90` with panels of two of every four inputs."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.cuda.wgmma_layout import halved_panels
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered.sm90 import ENTRY as GATHERED_SM90
from sparsefront_kernels.gathered.sm90 import HALVED_KERNEL, HALVED_LAUNCHES, sm90_unsupported_reason
from sparsefront_kernels.gathered.sm90_packing import HALF, K_BLOCK, Sm90PackedWeight, in_whole_runs, side_by_side
from sparsefront_kernels.gathered_2_4.format import Gathered24Format
from sparsefront_kernels.indices import GROUP
from sparsefront_kernels.problem import Problem

_WINDOWS = K_BLOCK // GROUP  # per k-block
_USES = (15, 240)  # bit masks of half 0 and half 1: all MMA tiles of a k-block
_NONE = [(-1, 0, -1, -1)]  # placeholder for k-blocks if all outputs are pruned


def _tile_unsupported_reason(tile: int) -> str | None:
    """Why halves of 64 outputs cannot be cut from tiles of this width, or None."""
    if tile % HALF == 0:
        return None
    return f"takes tiles of a multiple of {HALF} outputs, not of {tile}: windows of different tiles have no inputs in common"


def pack_for_sm90(stored: Gathered24Format) -> Sm90PackedWeight:
    """Pack the weight, on the format's device.

    Sixteen windows of a tile (64 inputs) are a k-block; 64 outputs a half, and two halves a CTA tile. Halves of one tile share
    its k-blocks; those of different tiles use their own.

    Raises:
        ValueError: the tile width is not a multiple of 64.
    """
    reason = _tile_unsupported_reason(stored.tile)
    if reason:
        raise ValueError(f"gathered_2_4: {reason}")
    inputs, panels, begins = _k_blocks_of_tiles(stored)
    parts = stored.tile // HALF
    tiles = [half // parts for half in range(-(-stored.output_index.numel() // HALF))]  # of each half
    cta_tiles = []  # k-blocks of each: number, uses, panel of half 0 and of half 1
    for first in range(0, len(tiles), 2):
        blocks: dict[int, list[int]] = {}
        for half, tile in enumerate(tiles[first : first + 2]):
            for number in range(begins[tile], begins[tile + 1]):
                block = blocks.setdefault(number, [0, -1, -1])
                block[0] += _USES[half]
                block[1 + half] = number * parts + (first + half) % parts
        cta_tiles.append([(number, *block) for number, block in blocks.items()])
    order = sorted(range(len(cta_tiles)), key=lambda index: -len(cta_tiles[index]))
    outputs, pruned = _outputs(stored)
    listed = [cta_tiles[index] for index in order] + [_NONE] * pruned
    device = stored.device
    words = torch.tensor([block for blocks in listed for block in blocks], dtype=torch.int64, device=device).view(-1, 4)
    spare = torch.cat([inputs, inputs.new_full((1, K_BLOCK), -1)])  # the last one is empty
    counts = torch.tensor([len(blocks) for blocks in listed], dtype=torch.int64, device=device)
    outputs = torch.cat([outputs[: len(order)][order], outputs[len(order) :]])
    compact, compact_index = side_by_side(outputs[: len(order)], stored.shape[0])
    return Sm90PackedWeight(
        n=stored.shape[0],
        k=stored.shape[1],
        panels=panels,
        k_blocks=pad(torch.cat([spare[words[:, 0]], words[:, 1:]], dim=1), (0, 1), value=-1).to(torch.int32),
        cta_tiles=torch.stack([counts.cumsum(0) - counts, counts], dim=1).to(torch.int32),
        outputs=outputs,
        k_blocks_of_each=0,
        whole_runs=in_whole_runs(outputs),
        lengths=(*(len(cta_tiles[index]) for index in order), *[0] * pruned),
        compact=compact,
        compact_index=compact_index,
    )


def _k_blocks_of_tiles(stored: Gathered24Format) -> tuple[Tensor, Tensor, list[int]]:
    """All k-blocks, tile by tile.

    Returns:
        inputs, int64 [k_blocks, 64], padded with -1; halved panels [k_blocks * halves per tile, 2304]; and the first k-block of
        each tile, then their number.
    """
    tile_of, counts = stored.window_tiles(), stored.tile_offsets.diff()
    k_blocks = -(-counts // _WINDOWS)
    begins = pad(k_blocks.cumsum(0), (1, 0))
    rank = torch.arange(len(tile_of), device=stored.device) - stored.tile_offsets[:-1][tile_of]
    at = begins[tile_of] + rank // _WINDOWS, rank % _WINDOWS
    total = int(begins[-1])
    inputs = torch.full((total, _WINDOWS, GROUP), -1, dtype=torch.int64, device=stored.device)
    inputs[at] = stored.inputs.long()
    panels = stored.values.new_zeros(total, _WINDOWS, stored.tile, GROUP)
    panels[at] = stored.panels()
    whole = panels.transpose(1, 2).reshape(-1, HALF, K_BLOCK)
    return inputs.flatten(1), halved_panels(whole), begins.tolist()


def _outputs(stored: Gathered24Format) -> tuple[Tensor, int]:
    """int32 [CTA tiles, 128], padded with -1: outputs with inputs, then pruned ones; and the number of CTA tiles of those."""
    pruned = torch.ones(stored.shape[0], dtype=torch.bool, device=stored.device)
    pruned[stored.output_index.long()] = False
    both = [_in_cta_tiles(stored.output_index), _in_cta_tiles(pruned.nonzero().flatten().to(torch.int32))]
    return torch.cat(both), len(both[1])


def _in_cta_tiles(index: Tensor) -> Tensor:
    return pad(index, (0, -index.numel() % (2 * HALF)), value=-1).view(-1, 2 * HALF)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return sm90_unsupported_reason(problem, _tile_unsupported_reason(stored.tile))


ENTRY = replace(
    GATHERED_SM90,
    name=HALVED_KERNEL,
    family="gathered_2_4",
    pack=pack_for_sm90,
    unsupported=_unsupported,
    tunable=HALVED_LAUNCHES,
)


def gathered_2_4_reference(
    x: Tensor,
    stored: Gathered24Format,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Like `gathered_reference`, with dense panels rebuilt in every call: correct, not fast."""
    return gathered_reference(x, stored.filled(), bias, activation=activation, residual=residual)
