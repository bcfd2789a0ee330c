"""What a Lightning Trainer gets besides settings: the gradients of short last steps, and progress."""

import logging
import time
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar
from torch.optim import Optimizer
from tqdm import tqdm

from sparsefront.progress import bar
from sparsefront.tasks.lightning_modules import TRAIN_LOSS

# Gradient accumulation, also for an epoch's shorter last step.


class AverageLastStep(pl.Callback):
    """Lightning callback that averages the gradients of an epoch's last step over its actual number of batches.

    Lightning divides every loss by `accumulate_grad_batches`, which is too much for a shorter last step. Put it before all
    callbacks that read gradients.

    Args:
        batches: per optimizer step.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self._accumulated = 0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._accumulated = batch_idx % self.batches + 1  # batches of this step so far

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        if self._accumulated < self.batches:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch._foreach_mul_([one.grad for one in trained if one.grad is not None], self.batches / self._accumulated)


# Progress: a bar on a terminal, lines elsewhere; it shows the loss, which synchronizes with the GPU.

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 60


class EpochBar(TQDMProgressBar):
    """Lightning's bar with epochs from 1 to n, known totals, and no version number of the logger's folder."""

    def init_train_tqdm(self) -> tqdm:
        return bar(description=self._epoch(), total=self.trainer.num_training_batches, unit="batch", leave=True)

    def init_validation_tqdm(self) -> tqdm:
        return bar(description="validation", total=sum(self.trainer.num_val_batches), unit="batch")

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.train_progress_bar.reset()
        self.train_progress_bar.set_description(self._epoch())

    def on_validation_batch_start(self, *_: Any) -> None:
        """Skip Lightning's dataloader index: there is only one."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        loss = trainer.callback_metrics.get(TRAIN_LOSS)
        if loss is not None:
            metrics = {TRAIN_LOSS: float(loss)} | metrics  # read only when the bar is refreshed
        return {name: value for name, value in metrics.items() if name != "v_num"}

    def _epoch(self) -> str:
        return f"epoch {self.trainer.current_epoch + 1} of {self.trainer.max_epochs}"


class EpochLines(pl.Callback):
    """Replaces the bar by a line after an epoch, if the last one was long enough ago."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            metrics = {name: f"{float(value):.4g}" for name, value in sorted(trainer.callback_metrics.items())}
            summary = ", ".join(f"{name} {value}" for name, value in metrics.items())
            log.info("epoch %d of %d: %s", trainer.current_epoch + 1, trainer.max_epochs, summary)
