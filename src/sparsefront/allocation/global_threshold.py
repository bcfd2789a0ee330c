"""One threshold for the whole network."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from sparsefront.allocation.base import GlobalAllocation
from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Groups, budget, follow_guides, keep_best, select_in_layer
from sparsefront.patterns.base import Pattern
from sparsefront.settings_class import Expression, ListOf, Share, settings_class


@settings_class()
class GlobalThreshold(GlobalAllocation):
    """Groups of all layers are ranked together; sensitive layers keep more, and the total is the target.

    A ranking across layers is only as fair as its scores. Those of tile_wise decrease with the group's length, so with
    similar weights, layers with the longest rows (the second Linear of a transformer's MLP) lose all outputs first.

    Args:
        min_density_share: every layer keeps at least this share of the network's target density, up to one group: at
            sparsity 0.9 a share of 0.2 keeps 0.02 of each layer. Multi-step patterns keep it after each step. 0 lets a
            threshold empty a layer, as in the sources; 1 gives all layers the same density.
        layer_groups: regular expressions of layer names. The layers that match one share a threshold and reach the target
            together; all other layers share another. The Tile-Wise authors prune the convolutions of VGG-16 in five such
            groups, between the poolings. Empty: one threshold.
    Source: "Global Weight Pruning" in Guo et al., Tile-Wise Sparsity, 2020; global magnitude pruning in the uniform
        sparsity paper. The minimum is an addition.
    """

    min_density_share: Annotated[Share, Field(description="of the target density")] = 0.0
    layer_groups: ListOf[Expression] = field(default_factory=list)
    name: ClassVar[str] = "global_threshold"

    def mismatch(self, pattern: Pattern) -> str | None:
        if self.layer_groups and pattern.tied:
            return "with layer_groups ranks them apart, and the pattern ties layers"
        return super().mismatch(pattern)

    def check_layers(self, pattern: Pattern, shapes: Mapping[str, tuple[int, int]], sparsity: float) -> None:
        for expression, layers in zip(self.layer_groups, self._grouped(shapes), strict=False):
            if not layers:
                allowed = f"{expression} finds no layer that is pruned; there are {', '.join(shapes)}"
                raise InvalidSetting("layer_groups", self.layer_groups, allowed)
        for layer in shapes:
            matches = [one for one in self.layer_groups if re.search(one, layer)]
            if len(matches) > 1:
                raise InvalidSetting(
                    "layer_groups", self.layer_groups, f"{' and '.join(matches)} both find layer {layer}"
                )

    def select(self, groups: Mapping[str, Groups], numel: Mapping[str, int], target: float) -> dict[str, Tensor]:
        keeps: dict[str, Tensor] = {}
        for layers in filter(None, self._grouped(groups)):
            keeps |= self._select({layer: groups[layer] for layer in layers}, numel, target)
        return keeps

    def _grouped(self, layers: Iterable[str]) -> list[list[str]]:
        """The layers that match each expression, then the others."""
        groups: list[list[str]] = [[] for _ in (*self.layer_groups, "others")]
        for layer in layers:
            places = (place for place, one in enumerate(self.layer_groups) if re.search(one, layer))
            groups[next(places, len(self.layer_groups))].append(layer)
        return groups

    def _select(self, groups: Mapping[str, Groups], numel: Mapping[str, int], target: float) -> dict[str, Tensor]:
        ranked = [self._protected(group, numel[layer], target) for layer, group in groups.items()]
        total = sum(numel[layer] for layer in groups)
        ranked = follow_guides(ranked, total, target)
        keeps = keep_best(ranked, budget(ranked, total, target))
        return dict(zip(groups, keeps, strict=True))

    def _protected(self, groups: Groups, numel: int, target: float) -> Groups:
        """Mark the layer's best groups, up to its share of the step's density, as staying."""
        if self.min_density_share == 0.0:
            return groups
        staying = select_in_layer(groups, numel, 1 - self.min_density_share * (1 - target))
        return replace(groups, scores=groups.scores.masked_fill(staying, math.inf))
