"""Recoveries that train under masks: one fit per round."""

from abc import abstractmethod
from dataclasses import dataclass

import pytorch_lightning as pl

from sparsefront.pruning.callback import ApplyMasks
from sparsefront.recovery.base import Recovery, RecoverySetup, Round, RoundRecord
from sparsefront.training.fit import FitTime, fit, steps_per_epoch
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe


@dataclass(frozen=True)
class TrainingPlan:
    """Args:
    epochs: of recovery.
    optimization: optimizer and learning-rate curve; always starts with a fresh optimizer state.
    lr_key: the setting that its peak rate comes from, or may be set by.
    """

    epochs: int
    optimization: Optimization
    lr_key: str = "recipe.lr"


class TrainingRecovery(Recovery):
    """Trains the surviving weights; says for how long, at which rates, from which weights and for which loss."""

    @abstractmethod
    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """Epochs, optimizer and learning rates of one round.

        Raises:
            InvalidSetting: what the recipe does not have, with its key written from the root.
        """

    def set_weights(self, round: Round) -> None:
        """Put the weights into `round.net` that the round starts from; by default they stay as they are."""

    def callbacks(self, round: Round) -> tuple[pl.Callback, ...]:
        """Further callbacks of the round's fit."""
        return ()

    def check(self, setup: RecoverySetup) -> None:
        self.plan(setup.recipe, steps_per_epoch=1)

    def recover(self, round: Round) -> RoundRecord:
        setup = round.setup
        steps = steps_per_epoch(round.data, setup.trainer)
        plan = self.plan(setup.recipe, steps)
        self.set_weights(round)
        round.masked.set(round.masks)
        apply_masks = ApplyMasks(
            round.masked,
            schedule=setup.pruning.schedule,
            sparsity=setup.pruning.sparsity,
            make_masks=round.make_masks,
            total_steps=plan.epochs * steps,
        )
        time = fit_round(round, plan, (apply_masks, *self.callbacks(round)))
        return RoundRecord(time.seconds, time.earlier_seconds, plan.epochs, plan.epochs * steps, apply_masks.reached)


def fit_round(round: Round, plan: TrainingPlan, callbacks: tuple[pl.Callback, ...] = ()) -> FitTime:
    """Train `round.net` in place as planned, with a fresh optimizer."""
    pruning = round.setup.pruning
    levels = pruning.schedule.round_sparsities(pruning.sparsity)
    number = f", round {levels.index(round.sparsity) + 1} of {len(levels)}" if len(levels) > 1 else ""
    return fit(
        round.make_task(plan.optimization),
        round.data,
        epochs=plan.epochs,
        recipe=round.setup.recipe,
        trainer=round.setup.trainer,
        loggers=round.loggers,
        directory=round.folder,
        callbacks=(*round.callbacks, *callbacks),
        unfinished=round.unfinished,
        stage=f"recover{number}",
        lr_key=plan.lr_key,
    )
