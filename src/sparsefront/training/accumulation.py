"""Gradients that several batches add up to, also where an epoch ends with fewer batches than a step takes."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch.optim import Optimizer


class AverageLastStep(pl.Callback):
    """Lightning callback that makes the gradients of an epoch's last step the mean over the batches that it really has.

    Lightning divides the loss of every batch by `accumulate_grad_batches`, so that the last step of an epoch would be too small
    by what it lacks. It comes before all callbacks that read gradients.

    Args:
        batches: that a step accumulates.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self._accumulated = 0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._accumulated = batch_idx % self.batches + 1  # of this step, this batch among them

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        if self._accumulated < self.batches:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch._foreach_mul_([one.grad for one in trained if one.grad is not None], self.batches / self._accumulated)
