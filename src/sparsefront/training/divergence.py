"""A training whose loss or weights stop being finite ends at once, with what to lower."""

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

EVERY = 10  # batches between two looks at the losses


class Diverged(InvalidSetting):
    """A training that its settings led to a loss or to weights that are not finite.

    Args:
        key: the setting to lower first.
        value: of the learning rate at that step.
        message: the whole line.
    """

    def __init__(self, key: str, value: float, message: str) -> None:
        super().__init__(key, value, message)

    def __str__(self) -> str:
        return self.allowed


@dataclass(frozen=True)
class _Moment:
    """Where a training was: epoch and optimizer step from 1, and the learning rate of that step."""

    epoch: int
    step: int
    lr: float


class StopAtDivergence(pl.Callback):
    """Lightning callback that raises `Diverged` where the loss is not finite.

    Losses stay on the device until several are read at once, so that no step waits for the GPU. Ranks add theirs up and
    stop at the same batch. What `fit` stores is checked itself: the weights at the end of an epoch and of the training.
    A step that the loss scaler of fp16 skips is no divergence: only its scaled gradients overflowed, the loss is finite.

    Lightning's own means do something else: `EarlyStopping(check_finite=True)` looks once an epoch and ends the training
    as if it were finished, `detect_anomaly` doubles the time and takes an overflow that the scaler handles for an error.

    Args:
        stage: what trains, for the message.
        lr_key: the setting that its learning rate comes from.
        recipe, precision: of this training: what else may help.
    """

    def __init__(self, *, stage: str, lr_key: str, recipe: Recipe, precision: str) -> None:
        self.stage, self.lr_key, self.recipe, self.precision = stage, lr_key, recipe, precision
        self._now = _Moment(1, 1, 0.0)
        self._unread: list[tuple[_Moment, Tensor]] = []
        self._epochs: int | None = None

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self._now = _Moment(trainer.current_epoch + 1, trainer.global_step + 1, float(max(rates, default=0.0)))
        self._epochs = trainer.max_epochs

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._unread.append((self._now, loss.detach()))
        if len(self._unread) == EVERY or trainer.is_last_batch:
            self._read_losses()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._read_losses()  # of an epoch that a number of steps cut short
        self.check_weights(module)

    def check_weights(self, module: nn.Module) -> None:
        """Raise `Diverged` where a parameter is not finite. It asks no other rank: theirs are the same."""
        if (found := first_non_finite(dict(module.named_parameters()))) is not None:
            name = found.name.removeprefix("net.")
            raise self._diverged(self._now, f"{name} is not finite, {found.counts} values")

    def explain(self, module: nn.Module) -> None:
        """Raise `Diverged` where that is why something else failed: masks may fall due before losses are read again, and
        cannot be made of such weights. It asks no other rank: not all of them may have failed.
        """
        self._check([(moment, float(loss)) for moment, loss in self._unread])
        self.check_weights(module)

    def _read_losses(self) -> None:
        if not self._unread:
            return
        moments, losses = zip(*self._unread, strict=True)
        self._unread = []
        # In fp64 no sum of finite losses overflows; NaN and infinity of any rank stay what they are.
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
        """Before any weight has changed: no learning rate is to blame."""
        remedies = ["look for NaN and extreme values in the data", *self._full_precision()]
        return self._error(moment, f"cannot train: {what} before any weight changed", remedies)

    def _full_precision(self) -> list[str]:
        return [] if self.precision == "32-true" else [f"set trainer.precision=32-true (now {self.precision})"]

    def _error(self, moment: _Moment, what: str, remedies: list[str]) -> Diverged:
        where = f"epoch {moment.epoch} of {self._epochs}, step {moment.step}, learning rate {moment.lr:.4g}"
        message = f"stage {self.stage} {what} ({where}); {' or '.join(remedies)}. Nothing of this training is stored"
        return Diverged(self.lr_key, moment.lr, message)
