"""Tensors that must be finite, scores among them, and the first that is not."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class NonFinite(NamedTuple):
    """A tensor with NaN or infinity: its name, and in words how many of each it holds."""

    name: str
    counts: str


def first_non_finite(tensors: Mapping[str, Tensor]) -> NonFinite | None:
    """The first tensor that holds NaN or infinity, in the order of the mapping; None where all are finite.

    Args:
        tensors: any shape and device; those of integers and bools are always finite.
    """
    for name, values in tensors.items():
        if values.numel() == 0 or not values.is_floating_point():
            continue
        if values.element_size() == 1:  # torch orders no 8-bit floats
            values = values.float()
        # The extremes carry NaN and infinity along: no temporary in the size of the tensor.
        if not torch.isfinite(torch.stack(torch.aminmax(values.detach()))).all():
            nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
            return NonFinite(name, f"{nans} NaN and {infinities} infinite of {values.numel()}")
    return None


def require_finite(scores: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first layer whose scores hold NaN or infinity.

    A NaN compares false with every threshold, so it would be pruned or kept at random places without a sound.
    """
    if (found := first_non_finite(scores)) is not None:
        raise ValueError(f"the importance of {found.name} is not finite: {found.counts} scores")
