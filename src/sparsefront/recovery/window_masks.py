"""Masks that each layer's own weights decide, window by window, and scales of parts of its rows, while it trains."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import Importance, WeightImportance
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.networks import layer_weight
from sparsefront.options import options_where
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.base import RecoverySetup

# Scales of parts of a weight's rows, trained beside the weight and multiplied into it in the end.


class RowScales(nn.Module):
    """Multiplies each of `groups` parts of neighboring columns of each row by a scale of its own, 1 to begin with.

    Args:
        weight: Linear or Conv weight, [N, K] or viewed so; K need not be a multiple of `groups`.
    Source: Huang et al., "CAST", 2025, section IV-B, equations 11 and 12.
    """

    part: Tensor

    def __init__(self, weight: Tensor, groups: int) -> None:
        super().__init__()
        rows, columns = as_matrix(weight).shape
        self.scale = nn.Parameter(weight.new_ones(rows, groups))
        part = torch.arange(columns, device=weight.device) * groups // columns
        self.register_buffer("part", part, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return like_weight(as_matrix(weight) * self.scale[:, self.part], weight)


def _unscaled(module: nn.Module) -> nn.Parameter:
    parametrizations: Any = module.parametrizations
    weight: nn.Parameter = parametrizations["weight"].original
    return weight


@contextmanager
def scaled_weights(net: nn.Module, layers: Iterable[str], groups: int) -> Iterator[dict[str, nn.Parameter]]:
    """While it lasts, the layers compute with scaled weights; then these are their weights and the scales are gone.

    Yields:
        layer name -> the weight without its scales, which is what trains.
    """
    modules = {layer: net.get_submodule(layer) for layer in layers}
    order = {layer: list(module._parameters) for layer, module in modules.items()}
    for module in modules.values():
        parametrize.register_parametrization(
            module, "weight", RowScales(layer_weight(module).detach(), groups), unsafe=True
        )
    try:
        yield {layer: _unscaled(module) for layer, module in modules.items()}
    finally:
        for layer, module in modules.items():
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
            for name in order[layer]:  # the weight came back last; optimizers and checkpoints go by the order
                module._parameters[name] = module._parameters.pop(name)


@dataclass(frozen=True, eq=False)
class WindowMasks:
    """Masks of weights by a balanced pattern, each layer on its own; of what `check_window_masks` lets pass."""

    pattern: Pattern
    importance: Importance
    spec: MaskSpec
    sparsity: float

    @torch.no_grad()
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Layer name -> bool [N, K], from layer name -> weight."""
        return {layer: self._mask(layer, weight) for layer, weight in weights.items()}

    def _mask(self, layer: str, weight: Tensor) -> Tensor:
        # Unchecked: a check would wait for the GPU at every layer.
        assert isinstance(self.importance, WeightImportance)
        scores = self.importance.of(as_matrix(weight).float())
        permutation = self.spec.permutation(layer)
        everything = torch.ones_like(scores, dtype=torch.bool)
        sparsity = self.spec.sparsity_of(layer, self.sparsity)
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
