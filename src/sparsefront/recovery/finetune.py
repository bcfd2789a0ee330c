"""Fine-tuning after pruning."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from sparsefront.recovery.base import Backend
from sparsefront.recovery.training import DenseAfter, TrainingPlan, TrainingRecovery, recovery_plan
from sparsefront.settings_class import LearningRate, settings_class
from sparsefront.training.recipe import Recipe


@settings_class()
class Finetune(TrainingRecovery):
    """Settings of `recovery=finetune`: train the surviving weights with a fresh optimizer. With one_shot, masks are fixed
    (Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021: prune once, repeat the schedule); with iterative, every
    round trains for its share of the epochs; with gradual, masks tighten during training.

    Args:
        epochs: of all rounds together; null = the recipe's recovery_epochs, else its epochs.
        lr: peak rate; null = the recipe's recovery_lr, else its lr.
        quantize: round products of the prunable layers as precision=fp8 does (`FakeQuantize`), to train for it.
        backend: dense also multiplies by zeros; sparse only by kept blocks or outputs; auto by the backend with the faster step.
        dense_after: fraction of the optimizer steps after which the masks are lifted and all weights train, which yields a dense
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
        """A full learning-rate curve of its own, including warm-up."""
        return recovery_plan(self.epochs, self.lr or recipe.recovery_lr or recipe.lr, recipe, steps_per_epoch)
