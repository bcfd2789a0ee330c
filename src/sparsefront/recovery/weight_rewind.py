"""Retrain from an earlier epoch of the dense run."""

from dataclasses import replace
from typing import ClassVar

from sparsefront.errors import InvalidSetting
from sparsefront.models.checkpoint import misfit_of
from sparsefront.networks import load_state
from sparsefront.recovery.base import Backend, RecoverySetup, Round
from sparsefront.recovery.training import Epochs, TrainingPlan, TrainingRecovery, first_epoch, rewound_plan
from sparsefront.settings_class import settings_class
from sparsefront.training.recipe import Recipe


@settings_class()
class WeightRewind(TrainingRecovery):
    """Settings of `recovery=weight_rewind`: masks come from the trained weights; then all surviving weights, biases and norms
    are reset to their values `epochs` before the end of the dense run and retrained with the same learning rates and a fresh
    optimizer. With iterative, every round scores the weights that the previous one trained and then rewinds (Frankle et al.,
    "Stabilizing the Lottery Ticket Hypothesis", 2019; Renda, Frankle and Carbin, "Comparing Rewinding and Fine-tuning",
    2020). With K = T it is the lottery ticket of Frankle and Carbin.

    Args:
        epochs: K, how far to rewind, in every round; all = the whole dense run (K = T), as in the sources; null = the recipe's
            recovery_epochs, else all.
        quantize, backend: as in finetune.
    """

    epochs: Epochs = "all"
    quantize: bool = False
    backend: Backend = "dense"

    name: ClassVar[str] = "weight_rewind"
    needs: ClassVar[tuple[str, ...]] = ("epoch_weights",)
    several_rounds: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def check(self, setup: RecoverySetup) -> None:
        super().check(setup)
        if not setup.epoch_weights:
            raise InvalidSetting(
                "recipe.save_epoch_weights",
                False,
                "recovery=weight_rewind goes back to weights that the dense run had on its way: "
                "set recipe.save_epoch_weights=true, and it keeps them",
            )

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """The last K epochs of the dense curve."""
        plan = rewound_plan(self.epochs, recipe, steps_per_epoch)
        return replace(plan, rewound=f"the weights and {plan.rewound}")

    def set_weights(self, round: Round) -> None:
        """Load the weights of the dense run at the start of epoch T - K.

        Raises:
            InvalidSetting: they are not available.
        """
        epoch = first_epoch(self.epochs, round.setup.recipe)
        try:
            weights = round.epoch_weights[epoch]
        except KeyError as error:
            there = f"of epochs {', '.join(map(str, round.epoch_weights))}"
            allowed = f"lacks the weights at the start of epoch {epoch}, counted from 0, where this recovery begins"
            raise InvalidSetting("epoch_weights", there, allowed) from error
        complaint = misfit_of(weights, round.net.state_dict())
        if complaint:
            raise InvalidSetting(f"epoch_weights[{epoch}]", "given", complaint)
        load_state(round.net, weights)
