"""SquareHead distillation: each block of the dense network teaches the same block of the pruned one."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from sparsefront.pruning.calibration import in_encoder, real_positions
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.recovery.backend import Backend
from sparsefront.recovery.base import RecoverySetup
from sparsefront.recovery.distillation import StatePairs, TaughtRecovery, TeacherCallback, prediction_loss
from sparsefront.settings_class import LearningRate, OneOrMore, settings_class
from sparsefront.tasks.base import Batch, Task


@settings_class()
class SquareHead(TaughtRecovery):
    """Settings of `recovery=square_head`: train the surviving weights on the labels and on the hidden states of every block of
    the dense network. Each block's error is relative to the size of its target, so that no block dominates and no loss weight
    needs tuning. Epochs and learning rates are those of `along`.

    Args:
        along: finetune or lr_rewind, which also determines the supported schedules.
        epochs, lr: as in that recovery.
        hidden_states: weight of the sum over the blocks; the labels have weight 1.
        soft_targets: weight of the teacher's softened predictions, as in `distill`; 0 = none, as in the source.
        temperature: T of the softened predictions.
        hidden_layers: names of the modules whose outputs are compared; null = every block.
        teacher: checkpoint of a network of the same architecture, including the head; null = the weights of the dense run.
        quantize, backend: as in that recovery, for the student only.
    Source: Kurtic et al., "Sparse Fine-tuning for Inference Acceleration of Large Language Models", 2023, section 2
        (SquareHead).
    """

    along: Literal["finetune", "lr_rewind"] = "finetune"
    epochs: PositiveInt | None = None
    lr: LearningRate | None = None
    hidden_states: PositiveFloat = 1.0
    soft_targets: NonNegativeFloat = 0.0
    temperature: PositiveFloat = 1.0
    hidden_layers: OneOrMore[str] | None = None
    teacher: str | None = None
    quantize: bool = False
    backend: Backend = "dense"

    name: ClassVar[str] = "square_head"
    trains_as_found: ClassVar[bool] = True

    @property
    def compares_hidden_states(self) -> bool:
        return True

    @property
    def reads_logits(self) -> bool:  # type: ignore[override]  # of the instance
        return self.soft_targets > 0

    def taught_by(
        self, dense_net: Callable[[], nn.Module], setup: RecoverySetup, spec: MaskSpec | None = None
    ) -> pl.Callback:
        teacher = self.make_teacher(dense_net)
        taught, learnt = self.compared_pairs(teacher, setup, spec)
        return SquareHeadDistillation(
            teacher,
            taught,
            learnt_layers=learnt,
            hidden_states=self.hidden_states,
            soft_targets=self.soft_targets,
            temperature=self.temperature,
        )


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
