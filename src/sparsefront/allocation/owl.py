"""Outlier-weighed layer sparsities (OWL): blocks with more outliers among their scores keep more weights."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat
from torch import Tensor

from sparsefront.allocation.base import LostImportance, PerLayerAllocation
from sparsefront.settings_class import settings_class

MOST = 0.99  # sparsity of a layer


@settings_class()
class Owl(PerLayerAllocation):
    """Density of a block = density of the network + D - the mean of D, where D is the fraction of the block's scores that
    exceed `outlier` times their mean, rescaled over all blocks to [0, 2 `spread`]. All layers of a block (the module up to the
    first number in their names) get its sparsity. Weighted by their sizes, the total is the requested sparsity; the spread
    shrinks where a layer would leave [0, 0.99].

    Args:
        outlier: M, a multiple of the mean score.
        spread: lambda, about the largest deviation from the network's sparsity.
    Source: Yin et al., "Outlier Weighed Layerwise Sparsity (OWL): A Missing Secret Sauce for Pruning LLMs to High Sparsity",
        2024, section 3.3, with `importance=wanda` as there. Departure: blocks are weighted by their sizes, so that the total is
        met where these differ.
    """

    outlier: PositiveFloat = 5.0
    spread: Annotated[float, Field(gt=0, lt=0.5)] = 0.08

    name: ClassVar[str] = "owl"

    def sparsities_of(
        self,
        scores: Mapping[str, Tensor],
        weight_shapes: Mapping[str, tuple[int, ...]],
        sparsity: float,
        lost: LostImportance,
    ) -> dict[str, float]:
        blocks: dict[str, list[str]] = {}
        for layer in weight_shapes:
            numbered = re.match(r"(.*?\.)?\d+(?=\.)", layer)
            blocks.setdefault(numbered.group() if numbered else layer, []).append(layer)
        sizes = {block: sum(math.prod(weight_shapes[layer]) for layer in layers) for block, layers in blocks.items()}
        outliers = {block: self._outlier_share([scores[layer] for layer in layers]) for block, layers in blocks.items()}
        least, most = min(outliers.values()), max(outliers.values())
        scale = 2 * self.spread / (most - least) if most > least else 0.0
        mean = sum(outliers[block] * size for block, size in sizes.items()) / sum(sizes.values())
        above = {block: scale * (mean - share) for block, share in outliers.items()}  # of the network's sparsity
        room = [(MOST - sparsity) / max(above.values()) if max(above.values()) > 0 else 1.0]
        room.append(sparsity / -min(above.values()) if min(above.values()) < 0 else 1.0)
        shrink = max(0.0, min(1.0, *room))
        return {layer: sparsity + shrink * above[block] for block, layers in blocks.items() for layer in layers}

    def _outlier_share(self, scores: list[Tensor]) -> float:
        """The fraction of these scores above `outlier` times their mean."""
        count = sum(one.numel() for one in scores)
        limit = self.outlier * sum(float(one.double().sum()) for one in scores) / count
        return sum(int((one > limit).sum()) for one in scores) / count

    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        raise TypeError("owl needs scores: see sparsities_of")
