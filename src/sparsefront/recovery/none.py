"""No recovery: prune and measure."""

from dataclasses import dataclass
from typing import ClassVar

from sparsefront.recovery.training_plan import TrainingPlan
from sparsefront.training.recipe import Recipe


@dataclass(frozen=True)
class NoRecovery:
    """Settings of `recovery=none`: the pruned weights are measured as they are."""

    name: ClassVar[str] = "none"
    schedules: ClassVar[tuple[str, ...]] = ("one_shot",)

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan | None:
        """None: nothing is trained."""
        return None
