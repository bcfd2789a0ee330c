"""The recovery interface, its per-round inputs, and re-estimation of BatchNorm statistics."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
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
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from sparsefront.tasks.lightning_modules import LightningTask

LayerMasks = dict[str, Tensor]
StateDict = Mapping[str, Tensor]
MakeMasks = Callable[[float, LayerMasks | None], LayerMasks]
"""(Sparsity, current masks) -> masks for the network's current weights."""


@dataclass(frozen=True, eq=False)
class RecoverySetup:
    """What a recovery needs that is the same in all rounds.

    Args:
        pruning: how masks are made.
        recipe: optimizer, learning rates and epochs of the training.
        trainer: device, precision and other settings of the Lightning Trainer.
        architecture: builds the network without its weights, for checks; may be on the meta device.
        prunable: returns the names of a network's prunable layers.
        epoch_weights: whether the per-epoch weights of the dense run are available.
        lr_argument: name of the learning-rate argument in messages if it is not a setting; None = the plan's `lr_key`.
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
    """One round of the schedule: new masks to recover from.

    Args:
        setup: see `RecoverySetup`.
        index: of the round, from 0.
        sparsity: of `masks`.
        net: in fp32; the unpruned dense weights in the first round, then the result of the previous round.
        masks: layer name -> bool, shaped like the weight or [N, K]; not applied yet. If the schedule nests masks, they lie
            within those of the previous round.
        masked: applies the masks of `net`; empty in the first round, then holds the previous round's masks.
        spec: the layers' permutations and final sparsities, fixed before the first masks.
        data: training data; its loader starts from the same order each time.
        make_masks: (sparsity, current masks) -> masks for the weights of `net` at the time of the call.
        make_task: (optimization, or None to evaluate only) -> a task around `net`.
        initial_net: returns a new network with the initial weights of the dense run.
        dense_net: returns a new copy of the trained dense network.
        epoch_weights: epoch of the dense run, from 0 -> the weights at its start.
        folder: where the training may write.
        resume_dir: where the state of this round's training survives a killed run; None = nowhere.
        loggers: of every fit.
        callbacks: added to every fit of this round.
        first_step: optimizer steps of all previous rounds, to continue logged curves.
    """

    setup: RecoverySetup
    index: int
    sparsity: float
    net: nn.Module
    masks: LayerMasks
    masked: MaskedWeights
    spec: MaskSpec
    data: "pl.LightningDataModule"
    make_masks: MakeMasks
    make_task: "Callable[[Optimization | None], LightningTask]"
    initial_net: Callable[[], nn.Module]
    dense_net: Callable[[], nn.Module]
    epoch_weights: Mapping[int, StateDict]
    folder: Path
    resume_dir: Path | None
    loggers: list
    callbacks: "tuple[pl.Callback, ...]" = ()
    first_step: int = 0

    @property
    def levels(self) -> tuple[float, ...]:
        """The sparsities of all rounds."""
        return self.setup.pruning.schedule.round_sparsities(self.setup.pruning.sparsity)


class Recovery(ABC):
    """Recovers accuracy after pruning. Subclasses are frozen dataclasses whose fields are the keys of their YAML.

    Attributes:
        several_rounds: can be called again, with new masks for the weights it returned.
        mask_updates: masks may change during its training, as in `ApplyMasks`.
        repeats: every round trains for the full budget; otherwise the rounds share it.
        reads_inputs: reads the inputs of pruned layers.
    """

    name: ClassVar[str]
    fingerprinted: ClassVar[frozenset[str]] = frozenset()
    """Settings that `fingerprint` covers, so that keys of stored stages leave them out."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Which of `dense_net`, `initial_net` and `epoch_weights` it requires."""
    starts_dense: ClassVar[bool] = False
    """Whether it starts from the dense weights, including those that are pruned."""
    several_rounds: ClassVar[bool] = False
    mask_updates: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    reads_inputs: ClassVar[bool] = False
    trains_as_found: ClassVar[bool] = False
    """Whether it trains the network as given, and so also works after whole blocks were removed."""
    reads_logits: ClassVar[bool] = False
    """Whether its loss compares the predictions of two networks."""
    has_teacher: ClassVar[bool] = False
    """Whether it has a teacher network (see `make_teaching`)."""
    store_teacher: ClassVar[bool] = False
    """Whether it takes the teacher's logits from its batches instead of running the teacher."""

    @property
    def leaves_dense(self) -> bool:
        """Whether it lifts the masks before its end and returns a dense network."""
        return False

    @property
    def training(self) -> "Recovery | None":
        """The recovery that trains the pruned network, itself or a part of it, and so has a plan; None = nothing trains."""
        return None

    def follows(self, schedule: Schedule, sparsity: float) -> bool:
        """Whether this recovery supports everything the schedule does on its way to the final `sparsity`."""
        one_round = len(schedule.round_sparsities(sparsity)) == 1
        return (one_round or self.several_rounds) and (self.mask_updates or not schedule.in_training)

    def check_schedule(self, schedule: Schedule, sparsity: float) -> None:
        """Check that this recovery supports a schedule.

        Raises:
            InvalidSetting: it does not; names the full key and the supported schedules.
        """
        self._validate_schedule(schedule, sparsity, "recovery", self.name)

    def _validate_schedule(self, schedule: Schedule, sparsity: float, key: str, value: str) -> None:
        """Raise the error of `check_schedule`; `key` and `value` are the setting that rules the schedule out."""
        if self.follows(schedule, sparsity):
            return
        followed = options_where("sparsefront.schedule", lambda other: self.follows(other, sparsity))
        raise InvalidSetting(key, value, f"goes with schedule {', '.join(followed)}, not with {schedule.name}")

    def check_pattern(self, pattern: Pattern) -> None:
        """Check that this recovery can train a network pruned with this pattern.

        Raises:
            InvalidSetting: key `recovery`; names the recoveries that can.
        """
        if (pattern.takes_blocks or pattern.over_norms) and not self.trains_as_found:
            met = options_where("sparsefront.recovery", lambda other: other.trains_as_found)
            allowed = f"pattern={pattern.name} takes whole blocks out of the network, which goes with {', '.join(met)}"
            raise InvalidSetting("recovery", self.name, allowed)

    def check(self, setup: RecoverySetup) -> None:
        """Check, before any training, that this recovery works with the rest of the setup.

        Raises:
            InvalidSetting: names the full key.
        """

    def make_teaching(
        self, dense_net: Callable[[], nn.Module], setup: RecoverySetup, spec: MaskSpec | None = None
    ) -> "pl.Callback":
        """Return the callback that adds this recovery's teacher and loss to any fit of the same network (if it `has_teacher`).

        Args:
            dense_net: returns a new copy of the trained dense network, the default teacher.
            spec: mask spec of the student, which may lack blocks; None = it has all of them.
        """
        raise NotImplementedError(f"{self.name} has no teacher")

    def fingerprint(self) -> dict[str, Any]:
        """What else determines the result besides the settings, JSON-able, for the keys of stored stages."""
        return {}

    @abstractmethod
    def recover(self, round: Round) -> RoundRecord:
        """Apply the round's masks and recover accuracy, in place.

        Afterwards `round.masked` holds the network's final masks of this round, and every weight that they prune is exactly
        zero. If the recovery `leaves_dense`, they prune nothing.
        """


# Re-estimation of BatchNorm statistics when nothing trains after pruning.
#
# Pruning changes the mean and variance of a layer's output, which the next BatchNorm was trained with. Training adapts
# them; without it, the dense statistics can cost more accuracy than the pruned weights did.

log = logging.getLogger(__name__)


@torch.no_grad()
def retake_batch_norm(round: Round, batches: int | None) -> None:
    """Re-estimate the running mean and variance of every BatchNorm of `round.net` in place, as plain averages over batches.

    Everything else stays in eval mode (`torch.optim.swa_utils.update_bn` would turn on dropout, which disturbs the
    averages). Batches with one row have no variance and are skipped. Statistics are averaged over ranks.

    Args:
        batches: number of training batches, at most one epoch; None = keep the statistics. Without BatchNorm none are read.
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
            norm.momentum = None  # cumulative average
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
        for norm, originals in zip(norms, before, strict=True):
            for statistic, old in zip(_statistics(norm), originals, strict=True):
                statistic.copy_(old)


def _statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Running mean and variance of a norm that tracks them."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var


def _average_over_ranks(norms: list[_BatchNorm], read: int) -> None:
    """Average the statistics over ranks, weighted by the number of batches each rank read."""
    total = sum(distributed.all_gather(read))
    if distributed.world_size() == 1 or total == 0:
        return
    for statistic in chain.from_iterable(map(_statistics, norms)):
        statistic.copy_(distributed.all_reduce_sum(statistic * read) / total)


# `recovery.backend`: which kernels train a pruned network. The sparse backend is imported only on use, so that results of dense
# training do not depend on kernels.

Backend = Literal["dense", "sparse", "auto"]
"""Training with dense products under masks, with kernels that skip pruned weights, or with the faster of both."""
DenseBackend = Annotated[
    Literal["dense"],
    Field(description="its update needs gradients of pruned weights, which the sparse backend does not compute"),
]
"""The backend of recoveries that also train pruned weights."""
SPARSE_BACKEND = "sparsefront.recovery.sparse_backend"


def check_backend(backend: Backend, setup: RecoverySetup, *, quantize: bool) -> None:
    """Check that the sparse backend, if selected, can train this setup.

    Raises:
        InvalidSetting: key `recovery.backend`, with the reason.
    """
    if backend == "sparse" and (reason := backend_unsupported_reason(setup, quantize=quantize)) is not None:
        raise InvalidSetting("recovery.backend", backend, f"{reason}; use dense")


def backend_unsupported_reason(setup: RecoverySetup, *, quantize: bool) -> str | None:
    """Why the sparse backend cannot train this setup; None if it can."""
    pattern, schedule, importance = setup.pruning.pattern, setup.pruning.schedule, setup.pruning.importance
    if not any(part.trains_sparse for part in (pattern.parts if pattern.mixed else (pattern,))):
        trained = ", ".join(options_where("sparsefront.patterns", lambda other: other.trains_sparse))
        return f"has kernels with a backward pass for pattern={trained}, not for {pattern.name}"
    if schedule.in_training and setup.trainer.world_size > 1:
        return f"lets masks change on one device, as those of schedule={schedule.name} do, not on several"
    if schedule.in_training and setup.recipe.ema is not None:
        return f"averages no weights (recipe.ema) whose masks change, as those of schedule={schedule.name} do"
    if importance.accumulates:
        return f"has no gradients of pruned weights, which importance={importance.name} adds up"
    if quantize:
        return "multiplies in 16 or 32 bits, not as recovery.quantize=true rounds"
    return None


def sparse_backend() -> ModuleType:
    """Import the sparse backend by name: a static import would make results depend on kernels."""
    return import_module(SPARSE_BACKEND)
