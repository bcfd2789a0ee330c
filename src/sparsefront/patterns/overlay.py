"""Element-wise overlay: the best of all that tile-wise pruning took comes back, weight by weight."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparsefront.patterns.groups import Groups


@dataclass(frozen=True)
class OverlayStep:
    """Bring single weights back until `target` is reached, those with the highest importance.

    Weights that an earlier mask of the schedule pruned stay pruned, so that masks nest.
    """

    target: float
    restores: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [N, K], one per weight: what the tiles hold stays, the rest of what is allowed is ranked."""
        return Groups(importance.masked_fill(~allowed, -math.inf).masked_fill_(mask, math.inf), 1)

    def expand(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        return kept
