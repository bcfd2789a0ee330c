"""What holds for one model x dataset pair: how long it trains, with which optimizer, which layers are left alone."""

import math
import re
from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sparsefront.declared.settings_class import settings_class
from sparsefront.declared.types import Expression, Fraction, LearningRate, ListOf


@settings_class()
class Recipe:
    """Settings of group `recipe`.

    Args:
        batch_size: samples of a batch, in training and in calibration; an optimizer step takes
            `trainer.devices * trainer.num_nodes * trainer.accumulate_grad_batches` of them.
        epochs, lr: of the dense (fine-)tuning; 0 epochs: the model's checkpoint is the dense network as it is.
        recovery_epochs, recovery_lr: of the training after pruning, whichever recovery it is; the rounds of a schedule share
            the epochs, unless each rewinds. null repeats the dense schedule, as NVIDIA's ASP recommends (Mishra et al.,
            "Accelerating Sparse Deep Neural Networks", 2021).
        optimizer: adamw or sgd.
        momentum: of sgd, in [0, 1): at 1 the sum of gradients would never fade.
        nesterov: of sgd: momentum looks ahead (Sutskever et al., 2013); false: plain momentum.
        weight_decay: applied to matrices and filters only; biases and norms are exempt.
        warmup: fraction of all steps in which the rate rises linearly from 0.
        decay: shape of the rate after warm-up, from lr to 0: linear, cosine, cosine_restart or constant.
        restarts: of cosine_restart: how often the rate jumps back to lr; the parts between are equally long.
        label_smoothing: e in [0, 1): the target is 1 - e of the label and e of all classes alike (Szegedy et al., "Rethinking
            the Inception Architecture for Computer Vision", 2016). In training alone: scores and evaluations do without.
        gradient_clip: bound on the gradient's global norm; null = none.
        save_epoch_weights: the dense run saves its weights at the start of every epoch, for recovery=weight_rewind.
        ema: decay of a moving average of the weights, in (0, 1); the averages are what is kept. null = none.
        ignore: regular expressions; a prunable layer whose name one of them finds stays dense.
    """

    batch_size: PositiveInt = 32
    epochs: NonNegativeInt = 3
    lr: LearningRate = 1e-3
    recovery_epochs: PositiveInt | None = None
    recovery_lr: LearningRate | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    weight_decay: NonNegativeFloat = 0.01
    momentum: Annotated[Fraction, Field(description="at 1 the sum of gradients would never fade")] = 0.9
    nesterov: bool = True
    warmup: Annotated[Fraction, Field(description="of the steps")] = 0.1
    decay: Literal["linear", "cosine", "cosine_restart", "constant"] = "linear"
    restarts: PositiveInt = 1
    label_smoothing: Annotated[Fraction, Field(description="of the target")] = 0.0
    gradient_clip: PositiveFloat | None = 1.0
    ema: Annotated[float, Field(gt=0, lt=1, description="the decay of an average")] | None = None
    save_epoch_weights: bool = False
    ignore: ListOf[Expression] = field(default_factory=list)

    def ignored_by(self, layer: str) -> str | None:
        """The expression of `ignore` that finds this layer's name, or None."""
        return next((expression for expression in self.ignore if re.search(expression, layer)), None)

    def ignored(self, layers: Iterable[str]) -> dict[str, str]:
        """The layers, out of these, that an expression of `ignore` finds -> which one."""
        found = {layer: self.ignored_by(layer) for layer in layers}
        return {layer: f"recipe.ignore: {expression}" for layer, expression in found.items() if expression is not None}


def learning_rate_factor(step: int, *, total_steps: int, warmup_steps: int, decay: str, restarts: int = 1) -> float:
    """Factor in [0, 1] on the peak learning rate at optimizer step `step` (the first step is 0).

    It rises linearly to 1 over `warmup_steps`, then falls to 0 at `total_steps`: linear 1 - p, cosine (1 + cos(pi p)) / 2,
    or stays at 1, with p the fraction of the steps after warm-up that are done. cosine_restart falls `restarts` + 1 times
    from 1 to 0, along a cosine each time and without another warm-up (Loshchilov and Hutter, "SGDR", 2017).
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done, length = step - warmup_steps, max(1, total_steps - warmup_steps)
    progress = min(1.0, done / length)
    if decay == "linear":
        return 1.0 - progress
    if decay == "cosine_restart" and progress < 1:
        progress = done * (restarts + 1) % length / length  # in whole steps: no rounding puts off a restart
    if decay in ("cosine", "cosine_restart"):
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0
