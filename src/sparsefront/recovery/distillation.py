"""Distillation: losses, hidden states, and the callback that runs the teacher."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import block_names
from sparsefront.models.checkpoint import misfit, read_weights, weights_fingerprint
from sparsefront.networks import has_blocks, load_state
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.base import RecoverySetup, Round
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.training import TrainingPlan, TrainingRecovery
from sparsefront.schedule.base import Schedule
from sparsefront.tasks.base import TEACHER_LOGITS, Batch, Task, mean_counted, with_square_mask
from sparsefront.training.graphs import HiddenStates
from sparsefront.training.recipe import Recipe

# The teacher callback, independent of the loss that compares the two networks.

StatePairs = list[tuple[Tensor, Tensor]]
"""(Student, teacher) hidden states, module by module."""


class TeacherCallback(pl.Callback, ABC):
    """Lightning callback that runs a teacher next to the trained network and sets the task's objective to `loss` for the
    duration of the fit. The teacher runs in eval mode, without gradients, on the student's device and in the precision of the
    training step. It is not part of the task and so of no checkpoint.

    Args:
        teacher: takes the same inputs as the student; None = its logits are in the batches, as `TEACHER_LOGITS`.
        hidden_layers: names of the teacher's modules whose outputs are compared.
        learnt_layers: the corresponding names in the student; None = the same names.
    """

    def __init__(
        self, teacher: nn.Module | None, hidden_layers: list[str] | None = None, learnt_layers: list[str] | None = None
    ) -> None:
        self.teacher = None if teacher is None else teacher.eval().requires_grad_(False)
        self.hidden_layers = hidden_layers or []
        self.learnt_layers = self.hidden_layers if learnt_layers is None else learnt_layers

    @abstractmethod
    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        """The scalar loss of a training step.

        Args:
            output, target: what the student and the teacher returned for this batch.
            states: of `hidden_layers`.
        """

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Task)
        self._learnt = HiddenStates(module.net, self.learnt_layers)
        module.objective, module.states = self.objective, self._learnt
        if self.teacher is not None:
            self._taught = HiddenStates(self.teacher.to(module.device), self.hidden_layers)
            module.teacher = (self.teacher, self._taught)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._learnt.listen()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Task)
        self._learnt.remove()
        if self.teacher is not None:
            self._taught.remove()
        module.objective = module.states = module.teacher = None

    def objective(self, task: Task, output: Any, batch: Batch) -> Tensor:
        """See `loss`; `output` is what the student returned in this training step."""
        if self.teacher is None:
            return self.loss(task, output, SimpleNamespace(logits=batch[TEACHER_LOGITS]), [], batch)
        self._taught.listen()
        with torch.no_grad():
            target = task.call(self.teacher, with_square_mask(task.net_inputs(batch), self.teacher))
        states = list(zip(self._learnt.take(), self._taught.take(), strict=True))
        return self.loss(task, output, target, states, batch)


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float, counted: Tensor | None = None) -> Tensor:
    """T^2 * KL(teacher || student) of the distributions softmax(logits / T), mean over the counted predictions, in fp32.

    The factor T^2 makes the gradient's magnitude independent of T. A single column is a regression score, for which the
    squared difference is used.

    Args:
        student, teacher: logits [predictions, classes], any float dtype.
        counted: bool [predictions], see `Task.counted`.
    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, section 2.
    """
    student, teacher = student.float(), teacher.float()
    if student.shape[-1] == 1:
        return mean_counted((student - teacher).square().squeeze(-1), counted)
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher / temperature, dim=-1)
    divergences = F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1)
    return temperature**2 * mean_counted(divergences, counted)


def prediction_loss(task: Task, output: Any, target: Any, batch: Batch, temperature: float) -> Tensor:
    """Mean `soft_target_loss` over the distributions that the task predicts for a batch."""
    pairs, counted = list(zip(task.logits(output), task.logits(target), strict=True)), task.counted(batch)
    first, *others = (soft_target_loss(student, teacher, temperature, counted) for student, teacher in pairs)
    return sum(others, first) / len(pairs)


class Distillation(TeacherCallback):
    """Distillation loss: (1 - hardness) * loss + hardness * T^2 * KL(teacher || student), the mean over the distributions that
    the task predicts, plus `hidden_states` times the mean squared difference of the hidden states (Hinton et al., 2015; hidden
    states as in Jiao et al., "TinyBERT", 2020, without its projection, because both networks have the same width). Computed in
    fp32.

    Args:
        teacher, hidden_layers, learnt_layers: see `TeacherCallback`.
        hardness: weight of the teacher, in [0, 1].
        temperature: T.
        hidden_states: weight of the hidden states.
    """

    def __init__(
        self,
        teacher: nn.Module | None,
        *,
        hardness: float,
        temperature: float,
        hidden_states: float = 0.0,
        hidden_layers: list[str] | None = None,
        learnt_layers: list[str] | None = None,
    ) -> None:
        super().__init__(teacher, hidden_layers, learnt_layers)
        self.hardness, self.temperature, self.hidden_states = hardness, temperature, hidden_states

    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        soft = prediction_loss(task, output, target, batch, self.temperature)
        loss = (1 - self.hardness) * task.label_loss(output, batch) + self.hardness * soft
        if not states:
            return loss
        distance = sum(F.mse_loss(student.float(), teacher.float()) for student, teacher in states) / len(states)
        return loss + self.hidden_states * distance


# What recoveries with a teacher share: the training plan, the teacher, and the compared hidden states.


class TaughtRecovery(TrainingRecovery):
    """Trains like another recovery, but with a teacher's loss. Subclasses are settings classes with these fields.

    Attributes:
        along: finetune or lr_rewind, which also determines the supported schedules.
        epochs, lr: as in that recovery.
        hidden_layers: names of the modules whose outputs are compared; None = every block.
        teacher: checkpoint of a network of the same architecture, including the head; None = the weights of the dense run.
    """

    along: Literal["finetune", "lr_rewind"]
    epochs: int | None
    lr: float | None
    hidden_layers: list[str] | None
    teacher: str | None

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"teacher"})
    has_teacher: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.along == "lr_rewind" and self.lr is not None:
            raise InvalidSetting("lr", self.lr, "must be null with along=lr_rewind, which takes the dense run's rates")

    @property
    @abstractmethod
    def compares_hidden_states(self) -> bool:
        """Whether the loss includes hidden states."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # of the instance: a checkpoint may teach instead
        return () if self.teacher else ("dense_net",)

    @property
    def repeats(self) -> bool:  # type: ignore[override]  # of the instance
        return self._along.repeats

    def follows(self, schedule: Schedule, sparsity: float) -> bool:
        """Whatever `along` supports."""
        return self._along.follows(schedule, sparsity)

    def check_schedule(self, schedule: Schedule, sparsity: float) -> None:
        """Blame `along`, not the teacher, for an unsupported schedule."""
        self._validate_schedule(schedule, sparsity, "recovery.along", self.along)

    @property
    def _along(self) -> TrainingRecovery:
        return Finetune(self.epochs, self.lr) if self.along == "finetune" else LearningRateRewind(self.epochs)

    def check(self, setup: RecoverySetup) -> None:
        super().check(setup)
        if self.teacher is None and not self.compares_hidden_states:
            return
        net = setup.architecture()
        if self.teacher is not None:
            self._teacher_weights(self.teacher, net)
        self.compared_layers(net, setup)

    def fingerprint(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": weights_fingerprint(self.teacher)}

    def plan(self, recipe: Recipe, steps_per_epoch: int) -> TrainingPlan:
        """The plan of `along`."""
        return self._along.plan(recipe, steps_per_epoch)

    def callbacks(self, round: Round) -> tuple[pl.Callback, ...]:
        return (self.taught_by(round.dense_net, round.setup, round.spec),)

    def make_teacher(self, dense_net: Callable[[], nn.Module]) -> nn.Module:
        """Load the teacher anew: it is not part of any training state."""
        teacher = dense_net()
        if self.teacher is not None:
            load_state(teacher, self._teacher_weights(self.teacher, teacher))
        return teacher

    def compared_layers(self, net: nn.Module, setup: RecoverySetup) -> list[str]:
        """Names of the modules whose outputs are compared.

        Raises:
            InvalidSetting: the network lacks a name, or has no known blocks.
        """
        if not self.compares_hidden_states:
            return []
        blocks = block_names(net, setup.prunable(net))
        names = blocks if self.hidden_layers is None else self.hidden_layers
        unknown = sorted(set(names) - {name for name, _ in net.named_modules()})
        if unknown or not names:
            hint = f"its blocks are {', '.join(blocks)}" if blocks else "it has no list of blocks: name its modules"
            raise InvalidSetting("recovery.hidden_layers", unknown or None, f"not in the network; {hint}")
        return names

    def compared_pairs(
        self, teacher: nn.Module, setup: RecoverySetup, spec: MaskSpec | None
    ) -> tuple[list[str], list[str]]:
        """Names of the compared modules in the teacher and in the student, except in blocks that the student lacks.

        Args:
            spec: the student's mask spec; None = it has all blocks.
        Raises:
            InvalidSetting: the student lacks all of these blocks.
        """
        taught = self.compared_layers(teacher, setup)
        removed = [] if spec is None else spec.removed_blocks
        if spec is None or not removed or not has_blocks(teacher, removed[0]):
            return taught, taught
        pairs = {name: left for name in taught if (left := spec.name_of_original(name)) is not None}
        if taught and not pairs:
            allowed = "are all in blocks that were taken out of the network"
            raise InvalidSetting("recovery.hidden_layers", taught, allowed)
        return list(pairs), list(pairs.values())

    def _teacher_weights(self, path: str, net: nn.Module) -> dict:
        """Load the state dict of the teacher's checkpoint at `path`.

        Raises:
            InvalidSetting: the file is missing, cannot be read, or does not fit this architecture.
        """
        try:
            weights = read_weights(path)
        except InvalidSetting as error:
            raise InvalidSetting("recovery.teacher", path, error.allowed) from error
        own = {key: list(tensor.shape) for key, tensor in net.state_dict().items()}
        shapes = {key: list(tensor.shape) for key, tensor in weights.items()}
        complaint = misfit(
            missing=[key for key in own if key not in shapes],
            unexpected=[key for key in shapes if key not in own],
            reshaped=[f"{key} {shapes[key]} for {own[key]}" for key in own if shapes.get(key, own[key]) != own[key]],
        )
        if complaint:
            raise InvalidSetting("recovery.teacher", path, complaint)
        return weights
