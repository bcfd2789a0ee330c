"""Training-time n:m masks computed from each layer's own weights, and scales of row parts."""

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


class RowScales(nn.Module):
    """Multiplies each of `groups` contiguous parts of every row by a learned scale, initially 1.

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


def _get_unscaled(module: nn.Module) -> nn.Parameter:
    parametrizations: Any = module.parametrizations
    weight: nn.Parameter = parametrizations["weight"].original
    return weight


@contextmanager
def scale_weights(net: nn.Module, layers: Iterable[str], groups: int) -> Iterator[dict[str, nn.Parameter]]:
    """Context in which the layers compute with scaled weights; on exit the scales are multiplied into the weights and removed.

    Yields:
        layer name -> the unscaled weight, which is what trains
    """
    modules = {layer: net.get_submodule(layer) for layer in layers}
    order = {layer: list(module._parameters) for layer, module in modules.items()}
    for module in modules.values():
        parametrize.register_parametrization(
            module, "weight", RowScales(layer_weight(module).detach(), groups), unsafe=True
        )
    try:
        yield {layer: _get_unscaled(module) for layer, module in modules.items()}
    finally:
        for layer, module in modules.items():
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
            for name in order[layer]:  # restore the parameter order, which optimizers and checkpoints depend on
                module._parameters[name] = module._parameters.pop(name)


@dataclass(frozen=True, eq=False)
class WindowMasks:
    """Masks weights by a balanced pattern, each layer independently; for setups that pass `check_window_masks`."""

    pattern: Pattern
    importance: Importance
    spec: MaskSpec
    sparsity: float

    @torch.no_grad()
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Layer name -> bool [N, K], from layer name -> weight."""
        return {layer: self._mask(layer, weight) for layer, weight in weights.items()}

    def _mask(self, layer: str, weight: Tensor) -> Tensor:
        # Not validated: that would synchronize with the GPU at every layer.
        assert isinstance(self.importance, WeightImportance)
        scores = self.importance.of(as_matrix(weight).float())
        permutation = self.spec.permutation(layer)
        everything = torch.ones_like(scores, dtype=torch.bool)
        sparsity = self.spec.sparsity_of(layer, self.sparsity)
        return permutation.invert(self.pattern.layer_mask(permutation.apply(scores), everything, sparsity))


def check_window_masks(recovery: str, setup: RecoverySetup) -> None:
    """Check that masks may change at any step of a training.

    Args:
        recovery: name of the recovery that makes them.
    Raises:
        InvalidSetting: the pattern has no windows, the scores need more than the weights, or weights are averaged (EMA).
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
