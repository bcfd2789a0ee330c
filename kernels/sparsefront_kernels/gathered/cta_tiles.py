"""A gathered weight cut into CTA tiles of one width, for kernels whose blocks compute a fixed number of outputs."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.gathered.format import GatheredFormat


def width_unsupported_reason(tile: int, width: int) -> str | None:
    """Why CTA tiles of this width cannot be cut from tiles, or None."""
    if tile % width == 0 or width % tile == 0:
        return None
    return f"takes tiles that divide {width} or are multiples of it, not tiles of {tile} outputs"


def cut_into_cta_tiles(stored: GatheredFormat, width: int) -> tuple[Tensor, Tensor]:
    """Cut wide tiles into CTA tiles that have the same list, unite narrow ones, whose lists are then united too.

    Outputs that are not stored form CTA tiles at the end that keep nothing, so that each output is in one CTA tile.

    Args:
        width: outputs of a CTA tile; it divides the tile or is a multiple of it.
    Returns:
        outputs, int32 [cta_tiles, width], -1 where a CTA tile is not full; the inputs they keep, bool [cta_tiles, K].
    Raises:
        ValueError: a width that `width_unsupported_reason` rejects.
    """
    if reason := width_unsupported_reason(stored.tile, width):
        raise ValueError(f"gathered: {reason}")
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    kept = torch.zeros(stored.tiles, k, dtype=torch.bool, device=device)
    tile_of = torch.repeat_interleave(torch.arange(stored.tiles, device=device), stored.tile_offsets.diff())
    kept[tile_of, stored.kept_inputs.long()] = True
    outputs = _in_rows(stored.output_index, width)
    if tile >= width:
        kept = kept[torch.arange(len(outputs), device=device) * width // tile]
    else:
        together = width // tile
        kept = pad(kept, (0, 0, 0, -len(kept) % together)).view(-1, together, k).any(dim=1)
    owned = torch.zeros(n, dtype=torch.bool, device=device)
    owned[stored.output_index.long()] = True
    outputs = torch.cat([outputs, _in_rows((~owned).nonzero().flatten().to(torch.int32), width)])
    return outputs, pad(kept, (0, 0, 0, len(outputs) - len(kept)))


def _in_rows(index: Tensor, width: int) -> Tensor:
    """[ceil(len / width), width], filled up with -1."""
    return pad(index, (0, -index.numel() % width), value=-1).view(-1, width)
