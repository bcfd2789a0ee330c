"""Retrain with the last learning rates of the dense run."""

from typing import ClassVar

from sparsefront.recovery.base import Backend
from sparsefront.recovery.training import DenseAfter, Epochs, TrainingPlan, TrainingRecovery, rewound_plan
from sparsefront.settings_class import settings_class
from sparsefront.training.recipe import Recipe


@settings_class()
class LearningRateRewind(TrainingRecovery):
    """Settings of `recovery=lr_rewind`: keep the weights, reset the learning rate to its value `epochs` before the end of the
    dense run, and follow the same curve to its end; with iterative, in every round (Renda, Frankle and Carbin, "Comparing
    Rewinding and Fine-tuning", 2020). The Uniform-sparsity paper rewinds once, to the start (K = T).

    Args:
        epochs: K, how far to rewind, in every round; all = the whole dense run (K = T), as in the sources; null = the recipe's
            recovery_epochs, else all.
        quantize, backend, dense_after: as in finetune.
    """

    epochs: Epochs = "all"
    quantize: bool = False
    backend: Backend = "dense"
    dense_after: DenseAfter = None

    name: ClassVar[str] = "lr_rewind"
    trains_as_found: ClassVar[bool] = True
    several_rounds: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """The last K epochs of the dense curve."""
        return rewound_plan(self.epochs, recipe, steps_per_epoch)
