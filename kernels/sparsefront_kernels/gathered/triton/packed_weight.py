"""The gathered weight laid out for the Triton kernel: equal panels, every output owned, heaviest tile first."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.gathered.format import GatheredFormat


@dataclass(frozen=True, eq=False)
class TritonPackedWeight:
    """What the kernel reads.

    Dropped outputs form extra tiles at the end that keep no inputs, so each element of Y has one program that writes
    it. The last stored panel is padded to the full tile: one row length for all panels lets the compiler prove the
    alignment of wide loads.

    Args:
        n, k: outputs and inputs of the weight.
        values: [sum of kept inputs, tile], row-major.
        kept_inputs: int32 [sum of kept inputs].
        tile_offsets: int64 [tiles + 1], the tiles of dropped outputs included.
        order: int32 [tiles], most kept inputs first, so that long tiles do not start last.
        outputs: int32 [tiles, tile]; -1 where the tile is not full.
        consecutive: True where `outputs` simply counts up to n, which makes stores contiguous.
    """

    n: int
    k: int
    values: Tensor
    kept_inputs: Tensor
    tile_offsets: Tensor
    order: Tensor
    outputs: Tensor
    consecutive: bool


def pack_for_triton(stored: GatheredFormat) -> TritonPackedWeight:
    """Lay the weight out for the kernel on the format's device; a narrow last tile costs a copy of the values."""
    (n, k), tile, total = stored.shape, stored.tile, stored.kept_inputs.numel()
    panels = stored.panels()
    values = stored.values
    if values.numel() != total * tile:
        *_, (outputs, _, last) = panels
        full = values[: values.numel() - last.numel()]
        values = torch.cat([full, pad(last, (0, tile - outputs.numel())).flatten()])
    owned = torch.zeros(n, dtype=torch.bool, device=values.device)
    owned[stored.output_index.long()] = True
    dropped = _in_tiles((~owned).nonzero().flatten().to(torch.int32), tile)
    offsets = torch.cat([stored.tile_offsets, stored.tile_offsets[-1:].expand(len(dropped))])
    return TritonPackedWeight(
        n=n,
        k=k,
        values=values.view(total, tile),
        kept_inputs=stored.kept_inputs,
        tile_offsets=offsets,
        order=offsets.diff().argsort(descending=True, stable=True).to(torch.int32),
        outputs=torch.cat([_in_tiles(stored.output_index, tile), dropped]),
        consecutive=stored.consecutive,
    )


def dense_weight(values: Tensor, kept_inputs: Tensor, tile_offsets: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """W [N, K] from tensors of `TritonPackedWeight`, without a look at their contents from the host."""
    rank = torch.arange(kept_inputs.shape[0], device=values.device)
    tile = torch.searchsorted(tile_offsets, rank, right=True) - 1
    dense = values.new_zeros(n + 1, k)  # what belongs to output -1 goes to the last row
    dense[outputs.long()[tile], kept_inputs.long()[:, None]] = values
    return dense[:n]


def _in_tiles(index: Tensor, tile: int) -> Tensor:
    """[ceil(len / tile), tile], filled up with -1."""
    return pad(index, (0, -index.numel() % tile), value=-1).view(-1, tile)
