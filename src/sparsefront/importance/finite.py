"""The guard against scores that rank nothing."""

from collections.abc import Mapping

import torch
from torch import Tensor


def refuse_non_finite(scores: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first layer whose scores hold NaN or infinity.

    A NaN compares false with every threshold, so it would be pruned or kept at random places without a sound.
    """
    for layer, values in scores.items():
        if values.numel() == 0:
            continue
        # The extremes carry NaN and infinity along: no temporary in the size of the weight.
        if not torch.isfinite(torch.stack(torch.aminmax(values))).all():
            raise ValueError(f"the importance of {layer} is not finite: {_counted(values)}")


def _counted(values: Tensor) -> str:
    """How many of which, for the message."""
    return f"{int(values.isnan().sum())} NaN and {int(values.isinf().sum())} infinite of {values.numel()} scores"
