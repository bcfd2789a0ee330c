"""Importance from the change of the loss predicted by a first-order Taylor expansion."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import Calibration, Importance, PruningParts, Source, sum_over_gradients
from sparsefront.networks import require_finite
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class Taylor(Importance):
    """|w * dL/dw|, summed over calibration batches: the loss change if the weight became zero.

    Args:
        batches: T, number of calibration batches.
        from_training: masks that change during the recovery come from the gradients of its own steps, without calibration:
            each step's |w * dL/dw| is added to 1 - 1/T times the sum so far. L is then the recovery's loss.
    Source: Molchanov et al., "Importance Estimation for Neural Network Pruning", 2019, as used by Guo et al.,
        Tile-Wise Sparsity, 2020 (slide "Importance Score": the root of the squared product, hence the absolute value).
    """

    batches: Batches = 16
    from_training: bool = False
    name: ClassVar[str] = "taylor"
    source: ClassVar[Source] = "gradients"

    @property
    def accumulates(self) -> bool:
        return self.from_training

    def accumulate(self, sums: Tensor, weight: Tensor, gradient: Tensor) -> None:
        sums.mul_(1 - 1 / self.batches).add_(_first_order(weight, gradient))

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        calibration = self.require(calibration)
        sums = calibration.accumulated() if self.from_training else {}
        if any(total.any() for total in sums.values()):
            scores = {layer: sums[layer].clone() for layer in weights}
        else:
            scores = sum_over_gradients(weights, calibration, self.batches, _first_order)
        require_finite(scores)
        return scores

    def check(self, pruning: PruningParts) -> None:
        schedule = pruning.schedule
        if self.from_training and not schedule.in_training and len(schedule.round_sparsities(0.5)) == 1:
            allowed = f"schedule={schedule.name} makes all masks before any training: schedule=gradual or iterative"
            raise InvalidSetting("importance.from_training", True, allowed)


def _first_order(weight: Tensor, gradient: Tensor) -> Tensor:
    return (weight * gradient).abs_()
