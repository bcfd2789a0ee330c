"""One threshold for the whole network."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from sparsefront.allocation.base import Ranked
from sparsefront.allocation.selection import budget, follow_guides, keep_best, select_in_layer
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.groups import Groups


@dataclass(frozen=True)
class GlobalThreshold(Ranked):
    """Groups of all layers are ranked together; sensitive layers keep more, and the total is the target.

    A ranking across layers is only as fair as its scores. Those of tile_wise fall with the length of a group, so where
    weights are alike, layers with the longest rows (the second Linear of a transformer's MLP) lose all outputs first.

    Args:
        min_density: fraction of its weights that every layer keeps at least, up to one group; 0 leaves a threshold free
            to empty a layer, as in the sources.
    Source: "Global Weight Pruning" in Guo et al., Tile-Wise Sparsity, 2020; global magnitude pruning in the uniform
        sparsity paper. The minimum density is an addition.
    """

    min_density: float = 0.0
    name: ClassVar[str] = "global_threshold"

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_density < 1.0:
            raise InvalidSetting("min_density", self.min_density, "a fraction of weights, at least 0 and below 1")

    def check_sparsity(self, sparsity: float) -> None:
        if self.min_density > 1 - sparsity + 1e-9:
            allowed = f"at most {1 - sparsity:.4g}, the density that sparsity {sparsity:g} leaves"
            raise InvalidSetting("min_density", self.min_density, allowed)

    def select(self, groups: Mapping[str, Groups], numel: Mapping[str, int], target: float) -> dict[str, Tensor]:
        ranked = [self._protected(group, numel[layer]) for layer, group in groups.items()]
        total = sum(numel[layer] for layer in groups)
        ranked = follow_guides(ranked, total, target)
        kept = keep_best(ranked, budget(ranked, total, target))
        return dict(zip(groups, kept, strict=True))

    def _protected(self, groups: Groups, numel: int) -> Groups:
        """The groups with the best of the layer, up to its minimum density, marked as staying."""
        if self.min_density == 0.0:
            return groups
        staying = select_in_layer(groups, numel, 1 - self.min_density)
        return replace(groups, scores=groups.scores.masked_fill(staying, math.inf))
