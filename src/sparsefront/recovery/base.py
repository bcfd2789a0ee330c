"""What every recovery provides, and what it is given in each round of the schedule."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.option_classes import options_where
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.settings import PruningSettings
from sparsefront.schedule.base import Schedule
from sparsefront.tasks.base import Task
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

LayerMasks = dict[str, Tensor]
StateDict = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class RecoverySetup:
    """What a recovery goes by, the same in all rounds.

    Args:
        pruning: how masks are made.
        recipe: optimizer, learning rates and epochs of the training.
        trainer: on what it runs.
        architecture: gives the network without its weights, for checks; also on the meta device.
        prunable: names of the layers of a network that may be pruned.
        epoch_weights: whether the weights of the dense run's epochs can be had.
    """

    pruning: PruningSettings
    recipe: Recipe
    trainer: TrainerSettings
    architecture: Callable[[], nn.Module]
    prunable: Callable[[nn.Module], list[str]]
    epoch_weights: bool


@dataclass(eq=False)
class Round:
    """One round of the schedule: new masks, to be recovered from.

    Args:
        setup: see `RecoverySetup`.
        index: which round this is, from 0.
        sparsity: of `masks`.
        net: fp32; in the first round the dense weights, unpruned; later what the round before left.
        masks: layer name -> bool, shaped like the weight or [N, K]; not applied yet, within those of the round before where the
            schedule nests masks.
        masked: applies the masks of `net`; in the first round it has none yet, later those of the round before.
        layout: the layers' permutations and final sparsities, fixed before the first masks.
        data: of training; its loader starts from the same order each time.
        make_masks: (sparsity, masks so far) -> masks for the weights of `net` as they are when it is called.
        make_task: (optimization, or None to evaluate only) -> a task around `net`.
        initial_net: a fresh network with the weights that the dense run started from.
        dense_net: a fresh copy of the trained dense network.
        epoch_weights: epoch of the dense run, counted from 0 -> the weights at its start.
        folder: where the training may write.
        unfinished: folder where the state of this round's training outlives a killed run; None = it does not.
        loggers: of every fit.
        callbacks: that every fit of this round takes along.
    """

    setup: RecoverySetup
    index: int
    sparsity: float
    net: nn.Module
    masks: LayerMasks
    masked: MaskedWeights
    layout: MaskLayout
    data: pl.LightningDataModule
    make_masks: Callable[[float, LayerMasks | None], LayerMasks]
    make_task: Callable[[Optimization | None], Task]
    initial_net: Callable[[], nn.Module]
    dense_net: Callable[[], nn.Module]
    epoch_weights: Mapping[int, StateDict]
    folder: Path
    unfinished: Path | None
    loggers: list
    callbacks: tuple[pl.Callback, ...] = ()

    @property
    def levels(self) -> tuple[float, ...]:
        """The sparsities of all rounds."""
        return self.setup.pruning.schedule.round_sparsities(self.setup.pruning.sparsity)


@dataclass(frozen=True)
class RoundRecord:
    """What a round cost and did.

    Args:
        seconds: of training, those before a kill included.
        earlier_seconds: the part of them before a kill.
        epochs, steps, samples: trained, as counted: see `training.budget.Trained`.
        updates: (step, sparsity) of every change of the masks while it trained.
        sparsity, sparsity_achieved: what was asked of the masks that it began with, and what those at its end have.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0
    updates: list[tuple[int, float]] = field(default_factory=list)
    sparsity: float = 0.0
    sparsity_achieved: float = 0.0


class Recovery(ABC):
    """Brings accuracy back after pruning; subclasses are frozen dataclasses, fields as in their YAML.

    Attributes:
        several_rounds: it may be called again, with new masks for the weights that it left.
        mask_updates: it lets masks change while it trains, as `ApplyMasks` does.
        repeats: every round trains for the whole budget, by definition; otherwise the rounds share it.
    """

    name: ClassVar[str]
    fingerprinted: ClassVar[frozenset[str]] = frozenset()
    """Settings that `fingerprint` speaks for, so that keys of stored stages do without them."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What of `dense_net`, `initial_net` and `epoch_weights` it cannot do without."""
    starts_dense: ClassVar[bool] = False
    """Whether it starts from the dense weights, also of what is pruned."""
    several_rounds: ClassVar[bool] = False
    mask_updates: ClassVar[bool] = False
    repeats: ClassVar[bool] = False

    @property
    def training(self) -> "Recovery | None":
        """What trains the pruned network, itself or in part, and so has a plan; None = nothing does."""
        return None

    def follows(self, schedule: Schedule, sparsity: float) -> bool:
        """Whether this recovery does all that a schedule asks for on its way to the final `sparsity`."""
        one_round = len(schedule.round_sparsities(sparsity)) == 1
        return (one_round or self.several_rounds) and (self.mask_updates or not schedule.in_training)

    def check_schedule(self, schedule: Schedule, sparsity: float) -> None:
        """Check that this recovery follows a schedule.

        Raises:
            InvalidSetting: with its key written from the root, and the schedules that it follows.
        """
        self._validate_schedule(schedule, sparsity, "recovery", self.name)

    def _validate_schedule(self, schedule: Schedule, sparsity: float, key: str, value: str) -> None:
        """The error of `check_schedule`; key and value are of the setting that rules the schedule out."""
        if self.follows(schedule, sparsity):
            return
        followed = options_where("sparsefront.schedule", lambda other: self.follows(other, sparsity))
        raise InvalidSetting(key, value, f"goes with schedule {', '.join(followed)}, not with {schedule.name}")

    def check(self, setup: RecoverySetup) -> None:
        """Validate, before anything is trained, that it works with the rest of the setup.

        Raises:
            InvalidSetting: with its key written from the root.
        """

    def fingerprint(self) -> dict[str, Any]:
        """What changes the result beside the settings themselves, JSON-able, for the keys of stored stages."""
        return {}

    @abstractmethod
    def recover(self, round: Round) -> RoundRecord:
        """Apply the round's masks and bring accuracy back, in place.

        Afterwards `round.masked` has the masks that the network ends the round with, and every weight that they prune
        is exactly zero.
        """
