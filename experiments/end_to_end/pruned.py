"""Networks pruned in memory: masks by the patterns' own code, and what a swap reads of an export."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from experiments.end_to_end.networks import Network
from experiments.end_to_end.points import Point
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.export.packed_layers import LayerRecord, Manifest, store
from sparsefront.importance.magnitude import Magnitude
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.operator_masks import pattern_masks

ALLOCATIONS = {"per_layer": PerLayer, "global_threshold": GlobalThreshold}


@dataclass(frozen=True)
class Masks:
    """Masks of a network.

    Args:
        pattern: whose they are, with its settings.
        sparsity: that was asked for.
        layers: pruned layer -> bool [N, K], True = keep.
        dense_layers: layer that the pattern cannot divide -> why.
    """

    pattern: Pattern
    sparsity: float
    layers: dict[str, Tensor]
    dense_layers: dict[str, str]

    @property
    def densities(self) -> dict[str, float]:
        return {name: mask.count_nonzero().item() / mask.numel() for name, mask in self.layers.items()}


def pattern_of(point: Point) -> Pattern:
    """The pattern of a row, its own defaults where the row says nothing.

    Raises:
        InvalidSetting: a setting that the pattern does not have, or a value that it does not take.
    """
    setting = point.setting
    given = dict(part.split("=", 1) for part in point.pattern_settings.split())
    settings = {key: _value(text) for key, text in given.items()}
    if setting.group_m is not None:
        settings |= {"n": round(setting.group_m * (1 - setting.sparsity)), "m": setting.group_m}
    return pattern_masks(setting.granularity, pattern=setting.pattern, **settings).of


def distribution_of(pattern: Pattern) -> str:
    """Where survivors may be: free, or balanced."""
    return getattr(pattern, "distribution", "balanced" if getattr(pattern, "balanced", False) else "free")


def prune(network: Network, point: Point) -> Masks:
    """Masks of a network's own weights, on its device; the network stays as it is."""
    pattern, sparsity = pattern_of(point), point.setting.sparsity
    weights = {name: as_matrix(network.net.get_submodule(name).weight.detach()) for name in network.prunable}
    dense = {
        name: why
        for name, weight in weights.items()
        if (why := pattern.unsupported_reason(tuple(weight.shape), sparsity))
    }
    if point.allocation not in ALLOCATIONS:
        raise InvalidSetting("allocation", point.allocation, f"is one of {', '.join(ALLOCATIONS)}")
    importance = Magnitude().scores({name: weight for name, weight in weights.items() if name not in dense})
    masks = make_masks(importance, pattern, ALLOCATIONS[point.allocation](), sparsity)
    return Masks(pattern, sparsity, masks, dense)


@torch.no_grad()
def apply_masks(net: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """Zero what the masks prune, in place."""
    for name, mask in masks.items():
        weight = net.get_submodule(name).weight
        weight.mul_(like_weight(mask, weight))
    return net


class PrunedInMemory:
    """What `swap` reads of an export, without files: manifest, masks, weights and formats of a masked network."""

    def __init__(self, masked: nn.Module, masks: Masks) -> None:
        self._net, self.masks, self._pattern = masked, masks.layers, masks.pattern
        self._sparsity = masks.sparsity
        densities = masks.densities
        layers = {name: self._record(mask, densities[name]) for name, mask in masks.layers.items()}
        self.manifest = Manifest(masks.pattern.name, {}, masks.sparsity, layers, masks.dense_layers)

    def state_dict(self) -> dict[str, Any]:
        return self._net.state_dict()

    def format(self, layer: str) -> SparseFormat:
        weight = as_matrix(self._net.get_submodule(layer).weight.detach())
        return store(weight, self.masks[layer], self._pattern.storage(tuple(weight.shape), self._sparsity))

    def _record(self, mask: Tensor, density: float) -> LayerRecord:
        shape = tuple(mask.shape)
        family, parameters = self._pattern.storage(shape, self._sparsity)
        return LayerRecord(family, parameters, {}, shape, round(density * mask.numel()), density)


def _value(text: str) -> Any:
    """As `--mask-settings` of the operator benchmark reads it."""
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
