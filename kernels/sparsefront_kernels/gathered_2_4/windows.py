"""The windows of a tile that is 2:4 sparse inside, read off its mask."""

import torch
from torch import Tensor

from sparsefront_kernels.common.two_of_four import GROUP


def inputs_of_windows(kept: Tensor, tile: int) -> Tensor:
    """Which inputs the windows of a tile have: the first two that each output keeps, the next two, and so on.

    Args:
        kept: bool [outputs, K], the mask of the tile's outputs.
        tile: its number, for messages.
    Returns:
        int64 [windows, 4], rising, -1 at the end of windows with fewer.
    Raises:
        ValueError: outputs that keep unequally many inputs, an input in different windows of two outputs, windows that
            overlap, or one of more than four inputs.
    """
    counts = kept.sum(dim=1)
    if (counts != counts[0]).any():
        raise ValueError(
            f"gathered_2_4: outputs of tile {tile} keep {int(counts.min())} to {int(counts.max())} inputs, not equally many"
        )
    window = (kept.cumsum(dim=1) - 1) // 2
    lowest = window.masked_fill(~kept, kept.shape[1]).amin(dim=0)
    highest = window.masked_fill(~kept, -1).amax(dim=0)
    inputs = kept.any(dim=0).nonzero().flatten()
    lowest, highest = lowest[inputs], highest[inputs]
    if (torn := lowest != highest).any():
        at = int(torn.nonzero()[0])
        raise ValueError(
            f"gathered_2_4: input {int(inputs[at])} of tile {tile} lies in window {int(lowest[at])} of one output and "
            f"{int(highest[at])} of another"
        )
    if (lowest.diff() < 0).any():
        raise ValueError(f"gathered_2_4: windows of tile {tile} overlap")
    widths = lowest.bincount()
    if len(widths) and int(widths.max()) > GROUP:
        raise ValueError(
            f"gathered_2_4: window {int(widths.argmax())} of tile {tile} needs {int(widths.max())} inputs, not {GROUP}"
        )
    place = torch.arange(len(inputs), device=kept.device) - (widths.cumsum(0) - widths)[lowest]
    windows = inputs.new_full((len(widths), GROUP), -1)
    windows[lowest, place] = inputs
    return windows
