"""What a training really took: counted while it runs, not planned."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from sparsefront import distributed


@dataclass(frozen=True)
class Trained:
    """One training, as it was counted.

    Args:
        seconds: wall clock without waits for other processes, those before a kill included.
        earlier_seconds: the part before a kill, of which the stage's clock knows nothing.
        epochs: passes over the data, the last one perhaps in part.
        steps: optimizer steps; one that the loss scaler of fp16 skips counts, as it does for the learning rate.
        samples: rows of the batches that were trained on, over all processes; repeated ones count again.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0


class CountBudget(pl.Callback):
    """Counts optimizer steps and samples as the loop takes them, over a kill too.

    Args:
        ends_after: optimizer steps after which the training ends within an epoch, which is validated as a whole one is; None =
            it goes on. Lightning's own `max_steps` counts epochs another way, and loses some where a run is resumed.
    """

    def __init__(self, ends_after: int | None = None) -> None:
        self.ends_after, self.steps = ends_after, 0
        self._batches, self._samples = 0, 0  # of this rank
        self._batches_per_epoch = 1

    @property
    def epochs(self) -> float:
        """The last one counts as far as it went."""
        return self._batches / self._batches_per_epoch

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps = trainer.global_step
        self._batches += 1
        self._batches_per_epoch = int(trainer.num_training_batches)
        self._samples += _rows(batch)
        if self.steps == self.ends_after:
            trainer.should_stop = True

    def samples(self) -> int:
        """Over all ranks; each of them asks."""
        return sum(distributed.all_gather(self._samples))

    def state_dict(self) -> dict[str, Any]:
        counted = {"batches": self._batches, "batches_per_epoch": self._batches_per_epoch}
        return {"steps": self.steps, **counted, "samples": distributed.all_gather(self._samples)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self._batches = state_dict["steps"], state_dict["batches"]
        self._batches_per_epoch = state_dict["batches_per_epoch"]
        self._samples = state_dict["samples"][distributed.rank()]


def _rows(batch: Any) -> int:
    """Of the first tensor of a batch by name; 0 of a batch that holds none."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return next((len(value) for value in values if isinstance(value, Tensor) and value.ndim), 0)
