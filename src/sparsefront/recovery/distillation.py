"""The losses of a student that learns from a teacher's predictions and from the size of its hidden states."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.recovery.teacher_callback import StatePairs, TeacherCallback
from sparsefront.tasks.base import Batch, Task


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 * KL(teacher || student) of the distributions softmax(logits / T), mean over the predictions, in fp32.

    The factor T^2 keeps the size of the gradient when T changes. A single column is a score and no distribution: its
    squared difference is taken.

    Args:
        student, teacher: logits [predictions, classes], any float dtype.
    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, section 2.
    """
    student, teacher = student.float(), teacher.float()
    if student.shape[-1] == 1:
        return F.mse_loss(student, teacher)
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher / temperature, dim=-1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)


def prediction_loss(task: Task, output: Any, target: Any, temperature: float) -> Tensor:
    """`soft_target_loss` of what two networks returned, the mean over the task's distributions where it predicts several."""
    pairs = list(zip(task.logits(output), task.logits(target), strict=True))
    return sum(soft_target_loss(student, teacher, temperature) for student, teacher in pairs) / len(pairs)


class Distillation(TeacherCallback):
    """Trains the network to give what a teacher gives: (1 - hardness) * loss + hardness * T^2 * KL(teacher || student), the
    mean over the task's distributions where it predicts several, plus `hidden_states` times the mean squared difference of
    the hidden states (Hinton et al., 2015; hidden states as in Jiao et al., "TinyBERT", 2020, without its projection, since
    both networks are equally wide). Losses are taken in fp32.

    Args:
        teacher, hidden_layers: see `TeacherCallback`.
        hardness: weight of the teacher, in [0, 1].
        temperature: T.
        hidden_states: weight of the hidden states.
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
        super().__init__(teacher, hidden_layers)
        self.hardness, self.temperature, self.hidden_states = hardness, temperature, hidden_states

    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        soft = prediction_loss(task, output, target, self.temperature)
        loss = (1 - self.hardness) * task.label_loss(output, batch) + self.hardness * soft
        if not states:
            return loss
        distance = sum(F.mse_loss(student.float(), teacher.float()) for student, teacher in states) / len(states)
        return loss + self.hidden_states * distance
