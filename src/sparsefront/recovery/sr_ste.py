"""SR-STE: train from the initial weights with masks that change at every step."""

from dataclasses import asdict
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveInt

from sparsefront.recovery.base import DenseBackend, RecoverySetup, Round, RoundRecord
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery, fit_round, recovery_plan
from sparsefront.recovery.window_masks import WindowMasks, check_window_masks
from sparsefront.settings_class import LearningRate, settings_class
from sparsefront.training.recipe import Recipe


@settings_class()
class SrSte(TrainingRecovery):
    """Settings of `recovery=sr_ste`: retrain the network from where the dense run began (pretrained or random weights) with the
    sparse-refined straight-through estimator (`StraightThrough`). The prune stage's masks only determine which layers take
    part; the result is pruned by the mask of the final weights.

    Made for SGD. With Adam the masked weights distort the estimate of the second moment and cost accuracy (Lu et al.,
    "STEP: Learning N:M Structured Sparsity Masks from Scratch with Precondition", 2023, which fixes it differently).

    Args:
        decay: lambda_W, the decay of pruned weights; 2e-4 in the source's experiments on ImageNet.
        epochs: of this training; null = the recipe's recovery_epochs, else its epochs.
        lr: peak rate; null = the recipe's lr.
        backend: dense: pruned weights are trained too.
    Source: Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch", 2021.
    """

    decay: Annotated[NonNegativeFloat, Field(description="0: the plain straight-through estimator")] = 2e-4
    epochs: Annotated[PositiveInt | None, Field(description="null: the recipe's")] = None
    lr: Annotated[LearningRate | None, Field(description="null: the recipe's")] = None
    backend: DenseBackend = "dense"

    name: ClassVar[str] = "sr_ste"
    needs: ClassVar[tuple[str, ...]] = ("initial_net",)

    def check(self, setup: RecoverySetup) -> None:
        check_window_masks(self.name, setup)

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """A full learning-rate curve of its own."""
        return recovery_plan(self.epochs, self.lr or recipe.lr, recipe, steps_per_epoch)

    def recover(self, round: Round) -> RoundRecord:
        from sparsefront.pruning.training_masks import StraightThrough  # here: Lightning takes seconds to import
        from sparsefront.training.fit import steps_per_epoch

        pruning = round.setup.pruning
        steps = steps_per_epoch(round.data, round.setup.trainer)
        plan = self.plan(round.setup.recipe, steps)
        round.net.load_state_dict(round.initial_net().state_dict())
        windows = WindowMasks(pruning.pattern, pruning.importance, round.spec, round.sparsity)
        refined = StraightThrough(round.net, list(round.masks), make_masks=windows, decay=self.decay)
        trained = fit_round(round, plan, (refined,))
        round.masked.set(refined.masks())
        return RoundRecord(**asdict(trained))
