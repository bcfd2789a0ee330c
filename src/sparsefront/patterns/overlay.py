"""Element-wise overlay: the best of all that tile-wise pruning took comes back, weight by weight."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparsefront.masks.groups import Groups


@dataclass(frozen=True)
class OverlayStep:
    """Bring single weights back until `target` is reached, those with the highest importance.

    Weights that an earlier mask of the schedule pruned stay pruned, so that masks nest.
    """

    target: float
    regrows: ClassVar[bool] = True

    def groups(self, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Groups:
        """Scores [N, K], one per weight: what the tiles hold stays, the rest of what is allowed is ranked."""
        return Groups(importance, 1, stays=mask, gone=~allowed)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor, *, allowed: Tensor) -> Tensor:
        return kept
