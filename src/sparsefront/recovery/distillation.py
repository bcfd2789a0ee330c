"""The losses of a student that learns from a teacher, and the callback that brings the teacher into a training."""

from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.recovery.hidden_states import HiddenStates
from sparsefront.tasks.base import Batch, Task


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 * KL(teacher || student) of the distributions softmax(logits / T), mean over the batch, in fp32.

    The factor T^2 keeps the size of the gradient when T changes. A single column is a score and no distribution: its
    squared difference is taken.

    Args:
        student, teacher: logits [B, classes], any float dtype.
    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, section 2.
    """
    student, teacher = student.float(), teacher.float()
    if student.shape[-1] == 1:
        return F.mse_loss(student, teacher)
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher / temperature, dim=-1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


class Distillation(pl.Callback):
    """Lightning callback that trains the network to give what a teacher gives. While the fit lasts it sets the task's
    objective to (1 - hardness) * loss + hardness * T^2 * KL(teacher || student), the mean over the task's distributions
    where it predicts several, plus `hidden_states` times the mean squared difference of the hidden states (Hinton et al.,
    2015; hidden states as in Jiao et al., "TinyBERT", 2020, without its projection, since both networks are equally wide).
    The teacher stays in eval mode and without gradients, on the device of the student; as no part of the task it is in no
    checkpoint. It runs in the precision of the training step; losses are taken in fp32.

    Args:
        teacher: takes the same inputs as the trained network.
        hardness: weight of the teacher, in [0, 1].
        temperature: T.
        hidden_states: weight of the hidden states.
        hidden_layers: names of the modules that return them, the same in both networks.
    """

    def __init__(
        self,
        teacher: nn.Module,
        *,
        hardness: float,
        temperature: float,
        hidden_states: float = 0.0,
        hidden_layers: list[str] | None = None,
    ) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.hardness, self.temperature, self.hidden_states = hardness, temperature, hidden_states
        self.hidden_layers = hidden_layers or []

    def on_train_start(self, trainer: pl.Trainer, module: Task) -> None:
        self.teacher.to(module.device)
        self._taught = HiddenStates(self.teacher, self.hidden_layers)
        self._learnt = HiddenStates(module.net, self.hidden_layers)
        module.objective = self.objective

    def on_train_batch_start(self, trainer: pl.Trainer, module: Task, batch: Any, batch_idx: int) -> None:
        self._learnt.listen()

    def on_train_end(self, trainer: pl.Trainer, module: Task) -> None:
        module.objective = None
        self._taught.remove()
        self._learnt.remove()

    def objective(self, task: Task, output: Any, batch: Batch) -> Tensor:
        """See the class; `output` is what the trained network returned in this training step."""
        self._taught.listen()
        with torch.no_grad():
            target = self.teacher(**task.net_inputs(batch))
        pairs = list(zip(task.logits(output), task.logits(target), strict=True))
        soft = sum(soft_target_loss(student, teacher, self.temperature) for student, teacher in pairs) / len(pairs)
        loss = (1 - self.hardness) * task.label_loss(output, batch) + self.hardness * soft
        states = list(zip(self._learnt.take(), self._taught.take(), strict=True))
        if not states:
            return loss
        distance = sum(F.mse_loss(student.float(), teacher.float()) for student, teacher in states) / len(states)
        return loss + self.hidden_states * distance
