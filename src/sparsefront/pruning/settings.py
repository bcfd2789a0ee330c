"""How masks are made: the choices that every part of a pruning looks at."""

from dataclasses import dataclass, field

from sparsefront.allocation.base import Allocation
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.importance.base import Importance
from sparsefront.importance.magnitude import Magnitude
from sparsefront.patterns.base import Pattern
from sparsefront.schedule.base import Schedule
from sparsefront.schedule.one_shot import OneShot


@dataclass(frozen=True)
class PruningSettings:
    """The parts of a pruning.

    Args:
        pattern: which weights are kept or pruned together.
        sparsity: the final one, a fraction of zeros in [0, 1).
        importance, allocation: what is worth keeping, and how much of each layer goes.
        schedule: when masks change on the way to the final sparsity.
    """

    pattern: Pattern
    sparsity: float
    importance: Importance = field(default_factory=Magnitude)
    allocation: Allocation = field(default_factory=PerLayer)
    schedule: Schedule = field(default_factory=OneShot)

    @property
    def first_sparsity(self) -> float:
        """Of the masks that the schedule begins with."""
        return self.schedule.sparsity_at(0.0, self.sparsity)
