"""The gathered weight laid out for the float32 kernel: tiles of 32, 64 or 128 outputs, longest first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.gathered.format import GatheredFormat, cut_into_cta_tiles, width_unsupported_reason

WIDTHS = (128, 64, 32)  # outputs of a block of the grid


@dataclass(frozen=True, eq=False)
class SimtPackedWeight:
    """What the float32 kernel reads.

    A tile of the kernel is a part of a wide tile of the format, or several narrow ones, whose lists are united and whose
    panels hold zeros where a tile does not keep an input.

    Args:
        n, k: outputs and inputs of the weight.
        panels: float32 [kept inputs of all tiles, width]: the weights of a kept input to the outputs of its tile.
        kept: int32 [kept inputs of all tiles], ascending within a tile.
        tiles: int32 [tiles, 2]: first kept input and number of them, 0 too; most first, so that long tiles do not
            start last.
        outputs: int32 [tiles, width]; -1 where a tile is not full. Every output of the weight is in one tile.
        kept_of_each: the number of kept inputs where it is the same for all tiles, else 0.
    """

    n: int
    k: int
    panels: Tensor
    kept: Tensor
    tiles: Tensor
    outputs: Tensor
    kept_of_each: int

    @property
    def width(self) -> int:
        """Outputs of a tile."""
        return self.outputs.shape[1]


def tile_unsupported_reason(tile: int) -> str | None:
    """Why the kernel's tiles cannot be cut from tiles of this width, or None."""
    return width_unsupported_reason(tile, WIDTHS[-1])


def pack_for_simt(stored: GatheredFormat) -> SimtPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Raises:
        ValueError: a tile width that `tile_unsupported_reason` rejects.
    """
    if reason := tile_unsupported_reason(stored.tile):
        raise ValueError(f"gathered: {reason}")
    width = next((width for width in WIDTHS if stored.tile % width == 0), WIDTHS[-1])
    outputs, keeps = cut_into_cta_tiles(stored, width)
    order = keeps.sum(dim=1).argsort(descending=True, stable=True)
    outputs, keeps = outputs[order], keeps[order]
    count = keeps.sum(dim=1)
    tile, kept = keeps.nonzero(as_tuple=True)
    rows = outputs[tile].long()  # [kept inputs, width]
    panels = stored.to_dense()[rows.clamp(min=0), kept[:, None]]
    return SimtPackedWeight(
        n=stored.shape[0],
        k=stored.shape[1],
        panels=panels.where(rows >= 0, torch.zeros((), dtype=panels.dtype, device=panels.device)),
        kept=kept.to(torch.int32),
        tiles=torch.stack([count.cumsum(0) - count, count], dim=1).to(torch.int32),
        outputs=outputs,
        kept_of_each=int(count[0]) if (count == count[0]).all() else 0,
    )


def dense_weight(panels: Tensor, kept: Tensor, tiles: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """W [N, K] from tensors of `SimtPackedWeight`, without a look at their contents from the host."""
    rank = torch.arange(kept.shape[0], device=panels.device, dtype=tiles.dtype)
    tile = torch.searchsorted(tiles[:, 0].contiguous(), rank, right=True) - 1
    dense = panels.new_zeros(n + 1, k)  # what belongs to output -1 goes to the last row
    dense[outputs.long()[tile], kept.long()[:, None]] = panels
    return dense[:n]
