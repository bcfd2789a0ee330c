"""The same sparsity in every layer."""

from collections.abc import Mapping
from typing import ClassVar

from sparsefront.allocation.base import LostImportance, PerLayerAllocation
from sparsefront.settings_class import settings_class


@settings_class()
class PerLayer(PerLayerAllocation):
    """Prune the same fraction of every layer, ranked within the layer."""

    name: ClassVar[str] = "per_layer"
    same_everywhere: ClassVar[bool] = True
    any_sparsity: ClassVar[bool] = False
    fixed_by_first_scores: ClassVar[bool] = False

    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        return dict.fromkeys(weight_shapes, sparsity)
