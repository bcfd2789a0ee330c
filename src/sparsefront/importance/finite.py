"""The guard against scores that rank nothing."""

from collections.abc import Mapping

from torch import Tensor

from sparsefront.finite import first_non_finite


def require_finite(scores: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first layer whose scores hold NaN or infinity.

    A NaN compares false with every threshold, so it would be pruned or kept at random places without a sound.
    """
    if (found := first_non_finite(scores)) is not None:
        raise ValueError(f"the importance of {found.name} is not finite: {found.counts} scores")
