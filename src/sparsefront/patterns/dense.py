"""No pruning: the pattern of the dense baseline."""

import math
from typing import ClassVar

from torch import Tensor

from sparsefront.patterns.base import Pattern, Step
from sparsefront.settings_class import settings_class


@settings_class()
class Dense(Pattern):
    """Keep every weight at every sparsity, so that a sweep over patterns includes its own baseline."""

    name: ClassVar[str] = "dense"
    prunes: ClassVar[bool] = False

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        return ()

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "dense", {}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        return math.prod(shape)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        if not mask.all():
            raise ValueError(f"dense: {int((~mask).sum())} weights are pruned, not 0")
