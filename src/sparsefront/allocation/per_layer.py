"""The same sparsity in every layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparsefront.allocation.base import Allocation
from sparsefront.allocation.selection import select_in_layer
from sparsefront.patterns.groups import Groups


@dataclass(frozen=True)
class PerLayer(Allocation):
    """Every layer loses the fraction `target` of its own weights, ranked within the layer."""

    name: ClassVar[str] = "per_layer"

    def select(
        self, groups: Mapping[str, Groups], shapes: Mapping[str, tuple[int, int]], target: float
    ) -> dict[str, Tensor]:
        return {
            layer: select_in_layer(group, shapes[layer][0] * shapes[layer][1], target)
            for layer, group in groups.items()
        }
