"""Recoveries that train under masks, with one fit per round; includes rewinding."""

import logging
import math
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.progress import counted
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.recovery.base import (
    SPARSE_BACKEND,
    Backend,
    MakeMasks,
    Recovery,
    RecoverySetup,
    Round,
    RoundRecord,
    check_backend,
    sparse_backend,
)
from sparsefront.schedule.one_shot import OneShot
from sparsefront.training.recipe import Optimization, Recipe

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from sparsefront.training.fit import Trained

DenseAfter = Annotated[float | None, Field(gt=0, lt=1, description="null: the masks stay")]
"""Fraction of the optimizer steps after which the masks are lifted."""


def check_dense_after(value: float, setup: RecoverySetup, backend: Backend) -> None:
    """Check that the masks can be lifted.

    Raises:
        InvalidSetting: key `recovery.dense_after`, with the reason.
    """
    pattern, schedule = setup.pruning.pattern, setup.pruning.schedule
    if not isinstance(schedule, OneShot):
        allowed = f"lifts masks that do not change before, those of schedule={OneShot.name}, not of {schedule.name}"
    elif pattern.takes_blocks:
        allowed = f"lifts masks, and pattern={pattern.name} takes whole blocks out of the network: leave it null"
    elif backend != "dense":
        allowed = f"trains the whole network on under recovery.backend=dense, not {backend}"
    else:
        return
    raise InvalidSetting("recovery.dense_after", value, allowed)


def first_dense_step(dense_after: float, steps: int) -> int:
    """The optimizer step, from 0, before which the masks are lifted; at least one step comes before it and one after.

    Raises:
        InvalidSetting: there is only one step.
    """
    if steps < 2:
        allowed = f"needs two optimizer steps or more, and the recovery takes {steps}"
        raise InvalidSetting("recovery.dense_after", dense_after, allowed)
    return min(max(1, round(dense_after * steps)), steps - 1)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingPlan:
    """Args:
    epochs: of recovery.
    optimization: optimizer and learning-rate curve; the optimizer state is always fresh.
    lr_key: the setting that determines its peak learning rate.
    steps: optimizer steps after which it ends within the last epoch; None = at the end of that epoch.
    rewound: what of the dense run is repeated, in words; None = nothing.
    """

    epochs: int
    optimization: Optimization
    lr_key: str = "recipe.lr"
    steps: int | None = None
    rewound: str | None = None

    def share(self, index: int, rounds: int, steps_per_epoch: int) -> "TrainingPlan":
        """The plan of one of several rounds: equal parts that add up to the whole, each with its own learning-rate curve.

        A round has at least one step, even if the budget has fewer steps than rounds.
        """
        whole = self.total_steps(steps_per_epoch)
        steps = max(1, whole * (index + 1) // rounds - whole * index // rounds)
        curve = replace(self.optimization, total_steps=steps)
        return replace(self, epochs=math.ceil(steps / steps_per_epoch), optimization=curve, steps=steps)

    def total_steps(self, steps_per_epoch: int) -> int:
        return self.epochs * steps_per_epoch if self.steps is None else self.steps


def recovery_plan(epochs: int | None, lr: float, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
    """A whole learning-rate curve over the recovery's own `epochs`, else the budget that the recipe gives to all recoveries.

    Args:
        lr: its peak.
    Raises:
        InvalidSetting: the recipe has neither recovery_epochs nor a dense run whose epochs could be repeated.
    """
    steps = recipe.recovery_steps if epochs is None else None
    if steps is not None:
        return TrainingPlan(
            math.ceil(steps / steps_per_epoch), Optimization(recipe, lr=lr, total_steps=steps), "recovery.lr", steps
        )
    total_epochs = epochs or recipe.recovery_epochs or recipe.epochs
    if total_epochs == 0:
        allowed = "must be set with recipe.epochs=0, which leaves no dense run to repeat; recovery=none trains nothing"
        raise InvalidSetting("recipe.recovery_epochs", None, allowed)
    return TrainingPlan(
        total_epochs, Optimization(recipe, lr=lr, total_steps=total_epochs * steps_per_epoch), "recovery.lr"
    )


class TrainingRecovery(Recovery):
    """Trains the surviving weights. Subclasses define epochs, learning rates, initial weights and loss.

    Attributes:
        quantize: train for fp8 (`FakeQuantize`), where offered as a setting.
        backend: `recovery.backend`, where offered. With the sparse backend, gradient clipping sees only kept weights.
        dense_after: fraction of the optimizer steps after which masks are lifted, where offered; None = they stay.
    """

    quantize: bool = False
    backend: Backend = "dense"
    dense_after: float | None = None

    @property
    def leaves_dense(self) -> bool:
        return self.dense_after is not None

    @property
    def training(self) -> "TrainingRecovery":
        return self

    @abstractmethod
    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """Epochs, optimizer and learning rates of all rounds together, or of each if it `repeats`.

        Raises:
            InvalidSetting: the recipe lacks something; names the full key.
        """

    def plan_of_round(self, recipe: Recipe, steps_per_epoch: int, index: int, rounds: int) -> TrainingPlan:
        """The plan of a round, from 0."""
        plan = self.plan(recipe, steps_per_epoch)
        return plan if self.repeats or rounds == 1 else plan.share(index, rounds, steps_per_epoch)

    def set_weights(self, round: Round) -> None:
        """Set the initial weights of the round in `round.net`; by default they are not changed."""

    def callbacks(self, round: Round) -> "tuple[pl.Callback, ...]":
        """Additional callbacks of the round's fit."""
        return ()

    def check(self, setup: RecoverySetup) -> None:
        self.plan(setup.recipe, steps_per_epoch=1)
        if self.dense_after is not None:
            check_dense_after(self.dense_after, setup, self.backend)
        check_backend(self.backend, setup, quantize=self.quantize)

    @property
    def loaded_modules(self) -> tuple[str, ...]:
        """Modules that its results depend on beyond its imports."""
        return () if self.backend == "dense" else (SPARSE_BACKEND,)

    def _prepare_layers(
        self, round: Round, optimization: Optimization
    ) -> AbstractContextManager[tuple[MaskedWeights, MakeMasks]]:
        """The masked weights of the round's fit, and the function that remakes masks if they change."""
        if self.backend == "dense":
            return nullcontext((round.masked, round.make_masks))
        return sparse_backend().sparse_layers(self.backend, round, optimization, quantize=self.quantize)

    def recover(self, round: Round) -> RoundRecord:
        # training imports Lightning, which takes seconds; a check of settings does not wait for it
        from sparsefront.pruning.training_masks import ApplyMasks
        from sparsefront.training.fit import steps_per_epoch

        setup = round.setup
        steps = steps_per_epoch(round.data, setup.trainer)
        plan = self.plan_of_round(setup.recipe, steps, round.index, len(round.levels))
        if plan.rewound is not None:
            log.info("recover: rewinds %s", plan.rewound)
        total_steps = plan.total_steps(steps)
        dense_from = None if self.dense_after is None else first_dense_step(self.dense_after, total_steps)
        self.set_weights(round)
        round.masked.set(round.masks)
        with self._prepare_layers(round, plan.optimization) as (masked, make_masks):
            apply_masks = ApplyMasks(
                masked,
                schedule=setup.pruning.schedule,
                sparsity=setup.pruning.sparsity,
                make_masks=make_masks,
                total_steps=total_steps,
                dense_from=dense_from,
            )
            callbacks = apply_masks, *self.callbacks(round)
            if self.quantize:
                from sparsefront.recovery.fake_quantize import FakeQuantize

                callbacks = *callbacks, FakeQuantize(round.net, setup.prunable(round.net))
            trained = fit_round(round, plan, callbacks)
        return RoundRecord(**asdict(trained), updates=apply_masks.reached)


def fit_round(round: Round, plan: TrainingPlan, callbacks: "tuple[pl.Callback, ...]" = ()) -> "Trained":
    """Train `round.net` in place as planned, with a fresh optimizer."""
    from sparsefront.training.fit import fit

    number = f", round {round.index + 1} of {len(round.levels)}" if len(round.levels) > 1 else ""
    return fit(
        round.make_task(plan.optimization),
        round.data,
        epochs=plan.epochs,
        steps=plan.steps,
        recipe=round.setup.recipe,
        trainer=round.setup.trainer,
        loggers=round.loggers,
        directory=round.folder,
        callbacks=(*round.callbacks, *callbacks),
        resume_dir=round.resume_dir,
        stage=f"recover{number}",
        lr_key=round.setup.lr_argument or plan.lr_key,
        phase="recover",
        first_step=round.first_step,
    )


Epochs = Annotated[PositiveInt, Field(description="all: the whole dense run")] | Literal["all"] | None
"""K, how far to rewind; None = as far as the recipe's recovery_epochs, the only default of records before this one."""


def first_epoch(epochs: Epochs, recipe: Recipe) -> int:
    """T - K: the epoch of the dense run, from 0, that starts K epochs before its end.

    Args:
        epochs: K; all = T, as in the sources; None = the recipe's recovery_epochs, else all.
    Raises:
        InvalidSetting: K exceeds the epochs of the dense run, or there was none.
    """
    key, rewound = ("recipe.recovery_epochs", recipe.recovery_epochs) if epochs is None else ("recovery.epochs", epochs)
    if recipe.recovery_steps is not None:
        raise InvalidSetting("recipe.recovery_steps", recipe.recovery_steps, "rewinding counts epochs: recovery_epochs")
    if recipe.epochs == 0:
        raise InvalidSetting("recipe.epochs", 0, "trains no dense network, so there are no learning rates to rewind to")
    if rewound == "all":
        rewound = None
    if rewound is not None and rewound > recipe.epochs:
        raise InvalidSetting(key, rewound, f"cannot rewind past the {counted(recipe.epochs, 'epoch')} of the dense run")
    return 0 if rewound is None else recipe.epochs - rewound


def rewound_plan(epochs: Epochs, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
    """The last K epochs of the dense run's learning rates, step by step.

    Args:
        epochs: K; None = as in `first_epoch`.
    """
    first = first_epoch(epochs, recipe)
    total_steps = recipe.epochs * steps_per_epoch
    return TrainingPlan(
        recipe.epochs - first,
        Optimization(recipe, lr=recipe.lr, total_steps=total_steps, first_step=first * steps_per_epoch),
        rewound=f"the learning rates to the start of epoch {first + 1} of the dense run's {recipe.epochs}",
    )
