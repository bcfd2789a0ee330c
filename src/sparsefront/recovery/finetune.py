"""Train on after pruning."""

from dataclasses import dataclass
from typing import ClassVar

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery, recovery_epochs
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe


@dataclass(frozen=True)
class Finetune(TrainingRecovery):
    """Settings of `recovery=finetune`: the surviving weights are trained on with a fresh optimizer. With one_shot the masks
    are fixed (Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021: prune once, repeat the schedule); with
    iterative every round trains so, for its share of the epochs; with gradual the masks tighten meanwhile.

    Args:
        epochs: of all rounds together, which share them; null = the recipe's recovery_epochs, else its epochs.
        lr: peak rate; null = the recipe's recovery_lr, else its lr.
    """

    epochs: int | None = None
    lr: float | None = None

    name: ClassVar[str] = "finetune"
    several_rounds: ClassVar[bool] = True
    mask_updates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise InvalidSetting(
                "epochs", self.epochs, "must be at least 1, or null for the recipe's; recovery=none trains nothing"
            )
        if self.lr is not None and self.lr <= 0:
            raise InvalidSetting("lr", self.lr, "must be greater than 0, or null for the recipe's")

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """A whole learning-rate curve of its own, warm-up included."""
        epochs = recovery_epochs(self.epochs, recipe)
        lr = self.lr or recipe.recovery_lr or recipe.lr
        return TrainingPlan(epochs, Optimization(recipe, lr=lr, total_steps=epochs * steps_per_epoch), "recovery.lr")
