"""Importance from the change of the loss predicted by the diagonal of the empirical Fisher matrix."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sparsefront.importance.base import Calibration, Importance, Source, float_matrices, sum_over_gradients
from sparsefront.networks import require_finite
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class Fisher(Importance):
    """w^2 * F, with F = (1/T) * sum over T calibration batches of g_t^2 and g_t the gradient of batch t's mean loss.

    Optimal Brain Damage predicts that zeroing a weight of a trained network costs w^2 * H / 2, with H the diagonal of
    the Hessian; the diagonal of the Fisher matrix approximates H. The factors 1/2 and batch size B are left out because they
    are common to all weights. B appears because g_t averages over a batch: where the mean gradient is small, the mean of
    g_t^2 is 1/B of the mean of the squared per-example gradients, which is the Fisher diagonal. Elsewhere it also contains
    the squared mean gradient.

    Args:
        batches: T, number of calibration batches.
    Source: LeCun, Denker and Solla, "Optimal Brain Damage", 1989 (the expansion); Theis et al., "Faster gaze prediction
        with dense networks and Fisher pruning", 2018 (the Fisher diagonal for H); Singh and Alistarh, "WoodFisher", 2020
        (gradients of batches instead of examples).
    """

    batches: Batches = 16
    name: ClassVar[str] = "fisher"
    source: ClassVar[Source] = "gradients"

    @torch.no_grad()
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        scores = sum_over_gradients(weights, self.require(calibration), self.batches, _square)
        for layer, weight in float_matrices(weights).items():
            scores[layer].div_(self.batches).mul_(weight).mul_(weight)
        require_finite(scores)
        return scores


def _square(weight: Tensor, gradient: Tensor) -> Tensor:
    return gradient.square()
