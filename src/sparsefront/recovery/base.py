"""What every recovery provides, what it is given in each round of the schedule, and batch statistics taken again."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.networks import in_eval_mode
from sparsefront.options import options_where
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.masks import RoundRecord
from sparsefront.schedule.base import Schedule
from sparsefront.tasks.base import Task
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

LayerMasks = dict[str, Tensor]
StateDict = Mapping[str, Tensor]
MakeMasks = Callable[[float, LayerMasks | None], LayerMasks]
"""(Sparsity, masks so far) -> masks for the network's weights as they are."""


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
        lr_argument: what sets the learning rate, for messages, where it is no setting of a run; None = the plan's `lr_key`.
    """

    pruning: PruningSettings
    recipe: Recipe
    trainer: TrainerSettings
    architecture: Callable[[], nn.Module]
    prunable: Callable[[nn.Module], list[str]]
    epoch_weights: bool
    lr_argument: str | None = None


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
        spec: the layers' permutations and final sparsities, fixed before the first masks.
        data: of training; its loader starts from the same order each time.
        make_masks: (sparsity, masks so far) -> masks for the weights of `net` as they are when it is called.
        make_task: (optimization, or None to evaluate only) -> a task around `net`.
        initial_net: a fresh network with the weights that the dense run started from.
        dense_net: a fresh copy of the trained dense network.
        epoch_weights: epoch of the dense run, counted from 0 -> the weights at its start.
        folder: where the training may write.
        resume_dir: folder where the state of this round's training outlives a killed run; None = it does not.
        loggers: of every fit.
        callbacks: that every fit of this round takes along.
        first_step: optimizer steps that all rounds before it took, for curves that go on.
    """

    setup: RecoverySetup
    index: int
    sparsity: float
    net: nn.Module
    masks: LayerMasks
    masked: MaskedWeights
    spec: MaskSpec
    data: pl.LightningDataModule
    make_masks: MakeMasks
    make_task: Callable[[Optimization | None], Task]
    initial_net: Callable[[], nn.Module]
    dense_net: Callable[[], nn.Module]
    epoch_weights: Mapping[int, StateDict]
    folder: Path
    resume_dir: Path | None
    loggers: list
    callbacks: tuple[pl.Callback, ...] = ()
    first_step: int = 0

    @property
    def levels(self) -> tuple[float, ...]:
        """The sparsities of all rounds."""
        return self.setup.pruning.schedule.round_sparsities(self.setup.pruning.sparsity)


class Recovery(ABC):
    """Brings accuracy back after pruning; subclasses are frozen dataclasses, fields as in their YAML.

    Attributes:
        several_rounds: it may be called again, with new masks for the weights that it left.
        mask_updates: it lets masks change while it trains, as `ApplyMasks` does.
        repeats: every round trains for the whole budget, by definition; otherwise the rounds share it.
        reads_inputs: it looks at what pruned layers multiply with their weights.
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
    reads_inputs: ClassVar[bool] = False
    trains_as_found: ClassVar[bool] = False
    """Whether it trains the network that it is given, and so also one that whole blocks were taken out of."""
    reads_logits: ClassVar[bool] = False
    """Whether its loss compares what two networks predict."""
    has_teacher: ClassVar[bool] = False
    """Whether another network teaches the pruned one: `taught_by` says how."""

    @property
    def leaves_dense(self) -> bool:
        """Whether it lifts the masks before its end, so that what it leaves is a dense network."""
        return False

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

    def check_pattern(self, pattern: Pattern) -> None:
        """Check that this recovery can train what a pattern leaves.

        Raises:
            InvalidSetting: key `recovery`, with those that can.
        """
        if pattern.takes_blocks and not self.trains_as_found:
            met = options_where("sparsefront.recovery", lambda other: other.trains_as_found)
            allowed = f"pattern={pattern.name} takes whole blocks out of the network, which goes with {', '.join(met)}"
            raise InvalidSetting("recovery", self.name, allowed)

    def check(self, setup: RecoverySetup) -> None:
        """Validate, before anything is trained, that it works with the rest of the setup.

        Raises:
            InvalidSetting: with its key written from the root.
        """

    def taught_by(
        self, dense_net: Callable[[], nn.Module], setup: RecoverySetup, spec: MaskSpec | None = None
    ) -> pl.Callback:
        """Of a recovery that `has_teacher`: the callback that brings its teacher and its loss into any fit of the same network.

        Args:
            dense_net: makes a fresh copy of the trained dense network, which teaches where no other one was named.
            spec: of the masks of the network that is taught, which may lack blocks; None: it is whole.
        """
        raise NotImplementedError(f"{self.name} has no teacher")

    def fingerprint(self) -> dict[str, Any]:
        """What changes the result beside the settings themselves, JSON-able, for the keys of stored stages."""
        return {}

    @abstractmethod
    def recover(self, round: Round) -> RoundRecord:
        """Apply the round's masks and bring accuracy back, in place.

        Afterwards `round.masked` has the masks that the network ends the round with, and every weight that they prune
        is exactly zero; where it `leaves_dense`, they prune none.
        """


# Running statistics of batch normalization, taken again where nothing trains after pruning.
#
# What a pruned layer gives has another mean and variance than what the next BatchNorm was trained with. Training
# repairs that by itself; without any, the statistics of the dense network can cost more accuracy than the pruned
# weights did.

log = logging.getLogger(__name__)


@torch.no_grad()
def retake_batch_norm(round: Round, batches: int | None) -> None:
    """Take the running mean and variance of every BatchNorm of `round.net` anew, in place, as plain averages over batches.

    All else stays in eval mode: `torch.optim.swa_utils.update_bn` would switch on dropout, which disturbs what is averaged. A
    batch of one row has no variance and is left out. Ranks average theirs.

    Args:
        batches: of training data, at most one epoch; None = the statistics stay. A network without BatchNorm reads none.
    """
    norms = [norm for norm in round.net.modules() if isinstance(norm, _BatchNorm) and norm.running_mean is not None]
    if batches is None or not norms:
        return
    round.net.to(torch.device(round.setup.trainer.device))
    task = round.make_task(None)
    calibration = NetworkCalibration(task, list(round.masks), round.data.train_dataloader)
    momenta = [norm.momentum for norm in norms]
    before = [tuple(statistic.clone() for statistic in _statistics(norm)) for norm in norms]
    read = 0
    with in_eval_mode(round.net):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # of a cumulative average
            norm.train()
        for batch in calibration.batches(min(batches, len(round.data.train_dataloader()))):
            inputs = task.net_inputs(batch)
            if len(next(value for value in inputs.values() if isinstance(value, Tensor))) > 1:
                task.call(round.net, inputs)
                read += 1
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    _average_over_ranks(norms, read)
    if sum(distributed.all_gather(read)) == 0:
        log.warning("BatchNorm statistics stay those of the dense network: every training batch has one row")
        for norm, kept in zip(norms, before, strict=True):
            for statistic, old in zip(_statistics(norm), kept, strict=True):
                statistic.copy_(old)


def _statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Running mean and variance of a norm that has them."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var


def _average_over_ranks(norms: list[_BatchNorm], read: int) -> None:
    """By how many batches each rank read."""
    total = sum(distributed.all_gather(read))
    if distributed.world_size() == 1 or total == 0:
        return
    for statistic in chain.from_iterable(map(_statistics, norms)):
        statistic.copy_(distributed.all_reduce_sum(statistic * read) / total)
