"""Importance from the change of the loss predicted by a first-order Taylor expansion."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from sparsefront.importance.base import Calibration, Importance, Source, sum_over_gradients
from sparsefront.networks import require_finite
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class Taylor(Importance):
    """|w * dL/dw|, summed over calibration batches: the loss change if the weight became zero.

    Args:
        batches: number of calibration batches.
    Source: Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, as used by Guo et al.,
        Tile-Wise Sparsity, 2020 (slide "Importance Score": the root of the squared product, hence the absolute value).
    """

    batches: Batches = 16
    name: ClassVar[str] = "taylor"
    source: ClassVar[Source] = "gradients"

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        scores = sum_over_gradients(weights, self.needed(calibration), self.batches, _first_order)
        require_finite(scores)
        return scores


def _first_order(weight: Tensor, gradient: Tensor) -> Tensor:
    return (weight * gradient).abs_()
