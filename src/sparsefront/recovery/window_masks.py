"""Masks that each layer's own weights decide, window by window, as often as a training asks for them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import WeightImportance
from sparsefront.masks.weight_view import as_matrix
from sparsefront.option_classes import options_where
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.recovery.base import RecoverySetup


@dataclass(frozen=True, eq=False)
class WindowMasks:
    """Masks of weights by a balanced pattern, each layer on its own."""

    pattern: Pattern
    importance: WeightImportance
    layout: MaskLayout
    sparsity: float

    @torch.no_grad()
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Layer name -> bool [N, K], from layer name -> weight."""
        return {layer: self._mask(layer, weight) for layer, weight in weights.items()}

    def _mask(self, layer: str, weight: Tensor) -> Tensor:
        # Unchecked: a check would wait for the GPU at every layer.
        scores = self.importance.of(as_matrix(weight).float())
        permutation = self.layout.permutation(layer)
        everything = torch.ones_like(scores, dtype=torch.bool)
        sparsity = self.layout.sparsity_of(layer, self.sparsity)
        return permutation.invert(self.pattern.layer_mask(permutation.apply(scores), everything, sparsity))


def check_window_masks(recovery: str, setup: RecoverySetup) -> None:
    """Check that masks may change at any step of a training.

    Args:
        recovery: name of the one that makes them.
    Raises:
        InvalidSetting: a pattern without windows, scores that take more than the weights, or weights that are averaged.
    """
    pattern, importance = setup.pruning.pattern, setup.pruning.importance
    if not pattern.balanced:
        balanced = " or ".join(options_where("sparsefront.patterns", lambda other: other.balanced))
        raise InvalidSetting(
            "recovery",
            recovery,
            f"needs n of every m kept: pattern={balanced}, or pattern.distribution=balanced where a pattern takes "
            f"it, not {pattern.name} as it is set",
        )
    if not isinstance(importance, WeightImportance):
        ranked = " or ".join(options_where("sparsefront.importance", lambda other: isinstance(other, WeightImportance)))
        raise InvalidSetting("recovery", recovery, f"ranks weights by importance={ranked}, not by {importance.name}")
    if setup.recipe.ema is not None:
        raise InvalidSetting(
            "recipe.ema",
            setup.recipe.ema,
            f"must be null with recovery={recovery}: it would average weights under different masks",
        )
