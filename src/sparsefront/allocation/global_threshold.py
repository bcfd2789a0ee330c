"""One threshold for the whole network."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from sparsefront.allocation.base import GlobalAllocation
from sparsefront.masks.groups import Groups, budget, follow_guides, keep_best, select_in_layer
from sparsefront.settings_class import Share, settings_class


@settings_class()
class GlobalThreshold(GlobalAllocation):
    """Groups of all layers are ranked together; sensitive layers keep more, and the total is the target.

    A ranking across layers is only as fair as its scores. Those of tile_wise fall with the length of a group, so where
    weights are alike, layers with the longest rows (the second Linear of a transformer's MLP) lose all outputs first.

    Args:
        min_density_share: every layer keeps at least this share of the density that the network is pruned to, up to one
            group: at sparsity 0.9 a share of 0.2 leaves 0.02 of each layer. Of a pattern with several steps it holds after
            each. 0 leaves a threshold free to empty a layer, as in the sources; 1 gives all layers the same density.
    Source: "Global Weight Pruning" in Guo et al., Tile-Wise Sparsity, 2020; global magnitude pruning in the uniform
        sparsity paper. The minimum is an addition.
    """

    min_density_share: Annotated[Share, Field(description="of the target density")] = 0.0
    name: ClassVar[str] = "global_threshold"

    def select(self, groups: Mapping[str, Groups], numel: Mapping[str, int], target: float) -> dict[str, Tensor]:
        ranked = [self._protected(group, numel[layer], target) for layer, group in groups.items()]
        total = sum(numel[layer] for layer in groups)
        ranked = follow_guides(ranked, total, target)
        kept = keep_best(ranked, budget(ranked, total, target))
        return dict(zip(groups, kept, strict=True))

    def _protected(self, groups: Groups, numel: int, target: float) -> Groups:
        """The groups with the best of the layer, up to its share of the step's density, marked as staying."""
        if self.min_density_share == 0.0:
            return groups
        staying = select_in_layer(groups, numel, 1 - self.min_density_share * (1 - target))
        return replace(groups, scores=groups.scores.masked_fill(staying, math.inf))
