"""Which of a tile's inputs lie together in a window of four, of which every output keeps at most two."""

import torch
from torch import Tensor

from sparsefront_kernels.common.indices import GROUP


def windows_of_inputs(kept: Tensor) -> Tensor:
    """Windows of neighboring inputs, each as long as it can be.

    A window takes the next input that any output keeps until it has four or an output would keep a third one. Where every
    output keeps two of every window, as `tile_2_4` prunes, that finds these windows, also where all outputs have dropped the
    same input of one.

    Args:
        kept: bool [tiles, outputs, K].
    Returns:
        int64 [tiles, K], the number of each input's window in its tile, -1 where no output keeps it.
    """
    by_input = kept.permute(2, 0, 1).contiguous()  # [K, tiles, outputs]
    alive = by_input.any(dim=2)
    count = kept.new_zeros(kept.shape[:2], dtype=torch.int8)  # of each output in the window
    width = kept.new_zeros(len(kept), dtype=torch.int64)
    window = torch.zeros_like(width)
    found = []
    for of_outputs, of_tiles in zip(by_input.to(torch.int8), alive, strict=True):
        more = count + of_outputs
        full = of_tiles & ((more > 2).any(dim=1) | (width == GROUP))
        count = torch.where(full[:, None], of_outputs, more)
        width = width.masked_fill(full, 0) + of_tiles
        window = window + full
        found.append(window)
    return torch.stack(found, dim=1).masked_fill(~alive.t(), -1)
