"""The callback that brings a teacher into a training, whatever loss compares the two networks."""

from abc import ABC, abstractmethod
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront.recovery.hidden_states import HiddenStates
from sparsefront.tasks.base import Batch, Task
from sparsefront.tasks.padding import with_square_mask

StatePairs = list[tuple[Tensor, Tensor]]
"""Hidden states of the trained network and of the teacher, module by module."""


class TeacherCallback(pl.Callback, ABC):
    """Lightning callback that runs a teacher beside the trained network. While the fit lasts it sets the task's objective to
    `loss`. The teacher stays in eval mode and without gradients, on the device of the student; as no part of the task it is
    in no checkpoint. It runs in the precision of the training step.

    Args:
        teacher: takes the same inputs as the trained network.
        hidden_layers: names of the modules whose outputs are compared, the same in both networks.
    """

    def __init__(self, teacher: nn.Module, hidden_layers: list[str] | None = None) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.hidden_layers = hidden_layers or []

    @abstractmethod
    def loss(self, task: Task, output: Any, target: Any, states: StatePairs, batch: Batch) -> Tensor:
        """What a training step minimizes, a scalar.

        Args:
            output, target: what the trained network and the teacher returned for this batch.
            states: of `hidden_layers`.
        """

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
        """See `loss`; `output` is what the trained network returned in this training step."""
        self._taught.listen()
        with torch.no_grad():
            target = self.teacher(**with_square_mask(task.net_inputs(batch), self.teacher))
        states = list(zip(self._learnt.take(), self._taught.take(), strict=True))
        return self.loss(task, output, target, states, batch)
