"""Train on along the learning rates of the dense run."""

from dataclasses import dataclass
from typing import ClassVar

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.training_plan import TrainingPlan
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe


@dataclass(frozen=True)
class LearningRateRewind:
    """Settings of `recovery=lr_rewind`: the weights stay, the learning rate goes back to what it was `epochs` before the end
    of the dense run and follows the same curve to its end (Renda, Frankle and Carbin, "Comparing Rewinding and
    Fine-tuning", 2020).

    Args:
        epochs: K, how far to rewind; null = the whole dense run (K = T).
    """

    epochs: int | None = None

    name: ClassVar[str] = "lr_rewind"
    schedules: ClassVar[tuple[str, ...]] = ("one_shot",)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise InvalidSetting("epochs", self.epochs, "must be at least 1, or null for the whole dense run")

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """The last K epochs of the dense curve.

        Raises:
            InvalidSetting: K is more than the dense run had.
        """
        epochs = self.epochs or recipe.epochs
        if epochs > recipe.epochs:
            raise InvalidSetting(
                "recovery.epochs", epochs, f"cannot rewind past the {recipe.epochs} epochs of the dense run"
            )
        total = recipe.epochs * steps_per_epoch
        return TrainingPlan(
            epochs,
            Optimization(
                recipe, lr=recipe.lr, total_steps=total, first_step=(recipe.epochs - epochs) * steps_per_epoch
            ),
        )
