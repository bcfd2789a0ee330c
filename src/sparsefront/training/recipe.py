"""What holds for one model x dataset pair: how long it trains, with which optimizer, which layers are left alone."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparsefront.errors import InvalidSetting

OPTIMIZERS = ("adamw", "sgd")
DECAYS = ("linear", "cosine", "constant")


@dataclass(frozen=True)
class Recipe:
    """Settings of group `recipe`.

    Args:
        batch_size: samples of a batch, in training and in calibration; an optimizer step takes
            `trainer.devices * trainer.accumulate_grad_batches` of them.
        epochs, lr: of the dense (fine-)tuning; 0 epochs: the model's checkpoint is the dense network as it is.
        recovery_epochs, recovery_lr: of the training after pruning, whichever recovery it is; the rounds of a schedule share
            the epochs, unless each rewinds. null repeats the dense schedule, as NVIDIA's ASP recommends (Mishra et al.,
            "Accelerating Sparse Deep Neural Networks", 2021).
        optimizer: adamw or sgd (with Nesterov momentum).
        weight_decay: applied to matrices and filters only; biases and norms are exempt.
        warmup: fraction of all steps in which the rate rises linearly from 0.
        decay: shape of the rate after warm-up, from lr to 0.
        gradient_clip: bound on the gradient's global norm; null = none.
        save_epoch_weights: the dense run saves its weights at the start of every epoch, for recovery=weight_rewind.
        ema: decay of a moving average of the weights, in (0, 1); the averages are what is kept. null = none.
        ignore: regular expressions; a prunable layer whose name one of them finds stays dense.
    """

    batch_size: int = 32
    epochs: int = 3
    lr: float = 1e-3
    recovery_epochs: int | None = None
    recovery_lr: float | None = None
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    momentum: float = 0.9
    warmup: float = 0.1
    decay: str = "linear"
    gradient_clip: float | None = 1.0
    ema: float | None = None
    save_epoch_weights: bool = False
    ignore: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise InvalidSetting(
                "epochs", self.epochs, "must be greater than 0, or 0 for a finished checkpoint as it is"
            )
        positive = {"batch_size": self.batch_size, "lr": self.lr}
        positive |= {
            key: value
            for key, value in {"recovery_epochs": self.recovery_epochs, "recovery_lr": self.recovery_lr}.items()
            if value is not None
        }
        if self.gradient_clip is not None:
            positive["gradient_clip"] = self.gradient_clip
        for key, value in positive.items():
            if value <= 0:
                raise InvalidSetting(key, value, "must be greater than 0")
        for key in ("weight_decay", "momentum"):
            if getattr(self, key) < 0:
                raise InvalidSetting(key, getattr(self, key), "must not be negative")
        if not 0 <= self.warmup < 1:
            raise InvalidSetting("warmup", self.warmup, "is a fraction of the steps, in [0, 1)")
        if self.ema is not None and not 0 < self.ema < 1:
            raise InvalidSetting("ema", self.ema, "is the decay of an average, in (0, 1), or null for none")
        if self.optimizer not in OPTIMIZERS:
            raise InvalidSetting("optimizer", self.optimizer, f"is one of {', '.join(OPTIMIZERS)}")
        if self.decay not in DECAYS:
            raise InvalidSetting("decay", self.decay, f"is one of {', '.join(DECAYS)}")
        for expression in self.ignore:
            try:
                re.compile(expression)
            except re.error as error:
                raise InvalidSetting("ignore", expression, f"is not a regular expression: {error}") from error

    def ignored_by(self, layer: str) -> str | None:
        """The expression of `ignore` that finds this layer's name, or None."""
        return next((expression for expression in self.ignore if re.search(expression, layer)), None)

    def ignored(self, layers: Iterable[str]) -> dict[str, str]:
        """The layers, out of these, that an expression of `ignore` finds -> which one."""
        found = {layer: self.ignored_by(layer) for layer in layers}
        return {layer: f"recipe.ignore: {expression}" for layer, expression in found.items() if expression is not None}


def learning_rate_factor(step: int, *, total_steps: int, warmup_steps: int, decay: str) -> float:
    """Factor in [0, 1] on the peak learning rate at optimizer step `step` (the first step is 0).

    It rises linearly to 1 over `warmup_steps`, then falls to 0 at `total_steps`: linear 1 - p, cosine (1 + cos(pi p)) / 2,
    or stays at 1, with p the fraction of the steps after warm-up that are done.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if decay == "linear":
        return 1.0 - progress
    if decay == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0
