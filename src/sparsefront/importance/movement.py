"""Importance by movement: whether training moves a weight towards zero or away from it."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import Calibration, Importance, PruningParts, Source
from sparsefront.networks import require_finite
from sparsefront.settings_class import settings_class


@settings_class()
class Movement(Importance):
    """S = -sum over training steps t of w_t * dL/dw_t: positive if gradient descent has been growing the weight.

    In the source, scores are parameters trained with the straight-through estimator, so a pruned weight keeps accumulating
    and may come back. Here masks are nested: a pruned weight is zero, accumulates nothing and stays pruned. Every optimizer
    step of recovery adds to the sum, with the gradient before clipping and without the scores' learning rate (a common
    factor). Scores are signed, which groups of weights preserve: see `masks.groups.signed_norm`.

    Scores exist only once training has begun, so the first masks must keep everything.

    Source: Sanh, Wolf and Rush, "Movement Pruning: Adaptive Sparsity by Fine-Tuning", 2020, section 3 (eq. for S).
    """

    name: ClassVar[str] = "movement"
    source: ClassVar[Source] = "training"

    def accumulate(self, sums: Tensor, weight: Tensor, gradient: Tensor) -> None:
        sums.addcmul_(weight, gradient, value=-1)

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        moved = self.needed(calibration).accumulated()
        scores = {layer: moved[layer].float() for layer in weights}
        require_finite(scores)
        return scores

    def check(self, pruning: PruningParts) -> None:
        schedule, first = pruning.schedule, pruning.first_sparsity
        if first > 0:
            raise InvalidSetting(
                "importance",
                self.name,
                f"scores weights by how training moves them, but schedule={schedule.name} prunes {first:.4g} before any "
                "training; choose schedule=gradual schedule.initial_sparsity=0, or schedule=iterative with "
                "schedule.levels that begin at 0",
            )
        fixed = _fixed_by_first_scores(pruning)
        if fixed is not None:
            raise InvalidSetting(
                *fixed, "is fixed by scores before any training, and importance=movement has none then"
            )


def _fixed_by_first_scores(pruning: PruningParts) -> tuple[str, str] | None:
    """The key and value of a setting that ranks layers, outputs or inputs once, before the first masks."""
    if pruning.allocation.fixed_by_first_scores:
        return "allocation", pruning.allocation.name
    pattern = pruning.pattern
    key = pattern.order_searched_by
    if key is None:
        return None
    _, _, setting = key.partition(".")
    return key, getattr(pattern, setting) if setting else pattern.name
