"""Distillation: losses, hidden states, and the callbacks that run the teacher."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.attention import fuse_attention
from sparsefront.pruning.calibration import in_encoder, real_positions
from sparsefront.tasks.base import TEACHER_LOGITS, Batch, Task, mean_counted, with_square_mask
from sparsefront.training.graphs import HiddenStates

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
        self._undo = ExitStack()

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
            self._undo.enter_context(fuse_attention(self.teacher, wanted=module.device.type == "cuda"))
            module.teacher = (self.teacher, self._taught)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._learnt.listen()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Task)
        self._learnt.remove()
        if self.teacher is not None:
            self._taught.remove()
        self._undo.close()
        module.objective = module.states = module.teacher = None

    def objective(self, task: Task, output: Any, batch: Batch) -> Tensor:
        """See `loss`; `output` is what the student returned in this training step."""
        if self.teacher is None:
            return self.loss(task, output, SimpleNamespace(logits=batch[TEACHER_LOGITS]), [], batch)
        self._taught.listen()
        with torch.no_grad():
            target = task.call(self.teacher, with_square_mask(task.net_inputs(batch), self.teacher))
        states = list(zip(self._learnt.take(), self._taught.take(), strict=True))
        for name, (learnt, taught) in zip(self.learnt_layers, states, strict=True):
            if learnt.shape != taught.shape:
                allowed = (
                    f"gives {list(learnt.shape)} and in the teacher {list(taught.shape)}: name modules of one width"
                )
                raise InvalidSetting("recovery.hidden_layers", name, allowed)
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


def square_head_loss(states: StatePairs, positions: Tensor | None = None) -> Tensor:
    """Sum over the blocks of MSE(student, teacher) / MSE(0, teacher), in fp32.

    Args:
            states: (student, teacher) [B, length, dim] per block, or any other shape without `positions`.
            positions: bool [B, length], True for tokens that are not padding; None = all count.
        Source: Kurtic et al., 2023, section 2; like here, their code ignores padding. It adds the epsilon of bfloat16 to the
            denominator, which here is only kept above zero, so that small states count fully.
    """
    total = torch.zeros((), device=states[0][0].device)
    for student, teacher in states:
        error, size = (student.float() - teacher.float()).square(), teacher.float().square()
        if positions is not None and student.shape[:2] == positions.shape:
            # masking instead of indexing, which would synchronize with the GPU; the number of positions cancels
            padding = ~positions.unsqueeze(-1)
            error, size = error.masked_fill(padding, 0.0), size.masked_fill(padding, 0.0)
        total = total + error.sum() / size.sum().clamp(min=torch.finfo(torch.float32).tiny)
    return total


class SquareHeadDistillation(TeacherCallback):
    """Trains for loss + hidden_states * `square_head_loss` + soft_targets * T^2 * KL(teacher || student).

    Args:
        teacher, hidden_layers, learnt_layers: see `TeacherCallback`.
    """

    def __init__(
        self,
        teacher: nn.Module,
        hidden_layers: list[str],
        *,
        learnt_layers: list[str] | None = None,
        hidden_states: float = 1.0,
        soft_targets: float = 0.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(teacher, hidden_layers, learnt_layers)
        self.hidden_states, self.soft_targets, self.temperature = hidden_states, soft_targets, temperature

    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        real, of_that_text = real_positions(batch), in_encoder(task.net)
        lost = torch.zeros((), device=states[0][0].device)
        for name, pair in zip(self.learnt_layers, states, strict=True):
            lost = lost + square_head_loss([pair], real if of_that_text(task.net.get_submodule(name)) else None)
        loss = task.label_loss(output, batch) + self.hidden_states * lost
        if not self.soft_targets:
            return loss
        return loss + self.soft_targets * prediction_loss(task, output, target, batch, self.temperature)
