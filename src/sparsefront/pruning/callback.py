"""Lightning callback that applies the masks while a network trains, and tightens them where the schedule says so."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.schedule.base import Schedule


class ApplyMasks(pl.Callback):
    """Zeroes pruned weights after every optimizer step; before the steps named by the schedule, makes the masks again.

    Args:
        masked: the masks of the network that is trained, already set to the sparsity that the round begins with.
        schedule: when masks change in a round.
        sparsity: the final one.
        make_masks: (sparsity, previous masks, shaped like the weights) -> masks for the network's weights as they are at that
            moment, nested in the previous ones.
        total_steps: optimizer steps of this training.
    Raises:
        InvalidSetting: a schedule that does not end at the final sparsity.
    """

    def __init__(
        self,
        masked: MaskedWeights,
        *,
        schedule: Schedule,
        sparsity: float,
        make_masks: Callable[[float, dict[str, Tensor]], dict[str, Tensor]],
        total_steps: int,
    ) -> None:
        self.masked, self.make_masks = masked, make_masks
        self.due = schedule.updates_of(total_steps, sparsity)
        schedule.check_end(self.due[max(self.due)] if self.due else schedule.round_sparsities(sparsity)[-1], sparsity)
        self.reached: list[tuple[int, float]] = []

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.masked.apply()
        self._handles = [self.masked.attach(optimizer) for optimizer in trainer.optimizers]

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step in self.due:
            current = self.due.pop(step)  # once: with gradient accumulation several batches share one step
            self._tighten(current)
            self.reached.append((step, current))
            module.log("train/sparsity", current)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for handle in self._handles:
            handle.remove()
        if self.due:
            raise RuntimeError(f"the training ended before steps {sorted(self.due)}, where masks were still to tighten")
        self.masked.check()

    def state_dict(self) -> dict[str, Any]:
        """The masks, which no state dict of the network holds, and what is still due: both belong to a checkpoint."""
        return {"masks": self.masked.masks(), "due": list(self.due.items()), "reached": list(self.reached)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.masked.set(state_dict["masks"])
        self.due = dict(state_dict["due"])
        self.reached = [tuple(update) for update in state_dict["reached"]]

    def _tighten(self, sparsity: float) -> None:
        self.masked.set(self.make_masks(sparsity, self.masked.masks()))
