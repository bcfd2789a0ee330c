"""What a training tells while it runs: a bar on a terminal, lines elsewhere."""

import logging
import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import TQDMProgressBar
from tqdm import tqdm

from sparsefront.progress import bar
from sparsefront.tasks.base import TRAIN_LOSS

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 60


class EpochBar(TQDMProgressBar):
    """Lightning's bar with epochs from 1 to n, known totals, and without the version number of a logger's folder."""

    def init_train_tqdm(self) -> tqdm:
        return bar(description=self._epoch(), total=self.trainer.num_training_batches, unit="batch", leave=True)

    def init_validation_tqdm(self) -> tqdm:
        return bar(description="validation", total=sum(self.trainer.num_val_batches), unit="batch")

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.train_progress_bar.reset()
        self.train_progress_bar.set_description(self._epoch())

    def on_validation_batch_start(self, *_: Any) -> None:
        """Lightning's would write the number of the loader, of which there is one."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        if (loss := trainer.callback_metrics.get(TRAIN_LOSS)) is not None:
            metrics = {TRAIN_LOSS: float(loss)} | metrics  # read only now that the bar moves
        return {name: value for name, value in metrics.items() if name != "v_num"}

    def _epoch(self) -> str:
        return f"epoch {self.trainer.current_epoch + 1} of {self.trainer.max_epochs}"


class EpochLines(pl.Callback):
    """In place of the bar: a line at the end of an epoch, where the last one was a while ago."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            metrics = {name: f"{float(value):.4g}" for name, value in sorted(trainer.callback_metrics.items())}
            told = ", ".join(f"{name} {value}" for name, value in metrics.items())
            log.info("epoch %d of %d: %s", trainer.current_epoch + 1, trainer.max_epochs, told)
