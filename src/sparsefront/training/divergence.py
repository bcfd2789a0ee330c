"""Stop a training whose loss or weights are not finite, and say what to change."""

import math
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.networks import first_non_finite
from sparsefront.training.recipe import Recipe

EVERY = 10  # batches between reads of the losses


class Diverged(InvalidSetting):
    """Raised when a training's loss or weights are not finite.

    Args:
        key: the setting to lower first.
        value: the learning rate at that step.
        message: the complete line.
    """

    def __init__(self, key: str, value: float, message: str) -> None:
        super().__init__(key, value, message)

    def __str__(self) -> str:
        return self.allowed


@dataclass(frozen=True)
class _Moment:
    """A point in training: epoch and optimizer step, from 1, and the learning rate of that step."""

    epoch: int
    step: int
    lr: float


class StopAtDivergence(pl.Callback):
    """Lightning callback that raises `Diverged` if the loss is not finite.

    Losses stay on the device and are read several at a time, so that steps do not synchronize. Ranks sum theirs and stop at
    the same batch. Weights are checked at the end of each epoch and of the training, before they are stored. A step skipped by
    the fp16 loss scaler is no divergence: only its scaled gradients overflowed.

    Lightning's own tools differ: `EarlyStopping(check_finite=True)` checks once per epoch and ends the training as if it had
    finished; `detect_anomaly` doubles the time and treats overflows that the scaler handles as errors.

    Args:
        stage: name of the training, for the message.
        lr_key: the setting of its learning rate.
        recipe, precision: of this training, for advice.
    """

    def __init__(self, *, stage: str, lr_key: str, recipe: Recipe, precision: str) -> None:
        self.stage, self.lr_key, self.recipe, self.precision = stage, lr_key, recipe, precision
        self._now = _Moment(1, 1, 0.0)
        self._unread: list[tuple[_Moment, Tensor]] = []
        self._epochs: int | None = None
        self._begun = False

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self._now = _Moment(trainer.current_epoch + 1, trainer.global_step + 1, float(max(rates, default=0.0)))
        self._epochs = trainer.max_epochs

    def on_before_backward(self, trainer: pl.Trainer, module: pl.LightningModule, loss: Tensor) -> None:
        """Read the very first loss immediately, before any weight has changed; not in fp16, where the loss is scaled and its
        scaler would skip such a step.
        """
        if self._now.step == 1 and not self._begun and self.precision != "16-mixed":
            self._unread = [(self._now, loss.detach())]
            self._read_losses()
        self._begun = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._unread.append((self._now, loss.detach()))
        if len(self._unread) == EVERY or trainer.is_last_batch:
            self._read_losses()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._read_losses()  # the rest of an epoch cut short by a step limit
        self.check_weights(module)

    def check_weights(self, module: nn.Module) -> None:
        """Raise `Diverged` if a parameter is not finite. Not a collective: all ranks have the same weights."""
        bad_tensor = first_non_finite(dict(module.named_parameters()))
        if bad_tensor is not None:
            name = bad_tensor.name.removeprefix("net.")
            raise self._diverged(self._now, f"{name} is not finite, {bad_tensor.counts} values")

    def explain(self, module: nn.Module) -> None:
        """Raise `Diverged` if that explains another error, such as masks that cannot be made from non-finite weights before
        losses are read. Not a collective: not all ranks may have failed.
        """
        self._check([(moment, float(loss)) for moment, loss in self._unread])
        self.check_weights(module)

    def _read_losses(self) -> None:
        if not self._unread:
            return
        moments, losses = zip(*self._unread, strict=True)
        self._unread = []
        # In fp64 a sum of finite losses cannot overflow; NaN and infinity of any rank propagate.
        self._check(list(zip(moments, distributed.all_reduce_sum(torch.stack(losses).double()).tolist(), strict=True)))

    def _check(self, losses: list[tuple[_Moment, float]]) -> None:
        for moment, loss in losses:
            if not math.isfinite(loss):
                what = f"the loss is {loss}"
                raise self._unusable_data(moment, what) if moment.step == 1 else self._diverged(moment, what)

    def _diverged(self, moment: _Moment, what: str) -> Diverged:
        remedies = [f"lower {self.lr_key}"]
        if self.recipe.gradient_clip is None:
            remedies.append("set recipe.gradient_clip=1")
        return self._error(moment, f"diverged: {what}", [*remedies, *self._full_precision()])

    def _unusable_data(self, moment: _Moment, what: str) -> Diverged:
        """The error for a non-finite first loss, which no learning rate can have caused."""
        remedies = ["look for NaN and extreme values in the data", *self._full_precision()]
        return self._error(moment, f"cannot train: {what} before any weight changed", remedies)

    def _full_precision(self) -> list[str]:
        return [] if self.precision == "32-true" else [f"set trainer.precision=32-true (now {self.precision})"]

    def _error(self, moment: _Moment, what: str, remedies: list[str]) -> Diverged:
        where = f"epoch {moment.epoch} of {self._epochs}, step {moment.step}, learning rate {moment.lr:.4g}"
        message = f"stage {self.stage} {what} ({where}); {' or '.join(remedies)}. Nothing of this training is stored"
        return Diverged(self.lr_key, moment.lr, message)
