"""Places of two of every four neighbors, as they are stored: two groups in a byte."""

import torch
from torch import Tensor
from torch.nn.functional import pad

GROUP = 4  # neighboring inputs, of which two are kept


def packed_places(places: Tensor) -> Tensor:
    """Places [..., groups, 2] → uint8 [..., ceil(groups / 2)]; an odd last group shares its byte with nothing.

    Bits 0-1 and 2-3 hold the places of the first group of a byte, 4-5 and 6-7 those of the second.
    """
    nibbles = places[..., 0] | (places[..., 1] << 2)
    # the unused half byte repeats the valid places 0 1, so that every nibble obeys the same rule
    nibbles = pad(nibbles, (0, places.shape[-2] % 2), value=4).unflatten(-1, (-1, 2))
    return (nibbles[..., 0] | (nibbles[..., 1] << 4)).to(torch.uint8)


def unpacked_places(metadata: Tensor, groups: int) -> Tensor:
    """The way back from `packed_places`: int64 [..., groups, 2]."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=metadata.device)
    places = (metadata[..., None] >> shifts) & 3  # [..., bytes, 4]
    return places.flatten(-2).unflatten(-1, (-1, 2))[..., :groups, :].long()
