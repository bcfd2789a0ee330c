"""Train on after pruning."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from sparsefront.recovery.backend import Backend
from sparsefront.recovery.dense_after import DenseAfter
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery, recovery_epochs
from sparsefront.settings_class import LearningRate, settings_class
from sparsefront.training.recipe import Optimization, Recipe


@settings_class()
class Finetune(TrainingRecovery):
    """Settings of `recovery=finetune`: the surviving weights are trained on with a fresh optimizer. With one_shot the masks
    are fixed (Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021: prune once, repeat the schedule); with
    iterative every round trains so, for its share of the epochs; with gradual the masks tighten meanwhile.

    Args:
        epochs: of all rounds together, which share them; null = the recipe's recovery_epochs, else its epochs.
        lr: peak rate; null = the recipe's recovery_lr, else its lr.
        quantize: products of the prunable layers round as precision=fp8 does (`FakeQuantize`), which trains for it.
        backend: dense multiplies by zeros too; sparse by kept blocks or outputs alone; auto by what takes less time for a step.
        dense_after: part of the optimizer steps after which the masks are lifted and all weights train on, which leaves a dense
            network; null = the masks stay.
    """

    epochs: Annotated[PositiveInt | None, Field(description="null: the recipe's; recovery=none trains nothing")] = None
    lr: Annotated[LearningRate | None, Field(description="null: the recipe's")] = None
    quantize: bool = False
    backend: Backend = "dense"
    dense_after: DenseAfter = None

    name: ClassVar[str] = "finetune"
    trains_as_found: ClassVar[bool] = True
    several_rounds: ClassVar[bool] = True
    mask_updates: ClassVar[bool] = True

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """A whole learning-rate curve of its own, warm-up included."""
        epochs = recovery_epochs(self.epochs, recipe)
        lr = self.lr or recipe.recovery_lr or recipe.lr
        return TrainingPlan(epochs, Optimization(recipe, lr=lr, total_steps=epochs * steps_per_epoch), "recovery.lr")
