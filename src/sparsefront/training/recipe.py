"""The training recipe of a model x dataset pair: epochs, optimizer and learning rates."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import Expression, Fraction, LearningRate, ListOf, settings_class


@settings_class()
class Recipe:
    """Settings of group `recipe`.

    Args:
        batch_size: samples per batch, in training and calibration; an optimizer step takes
            `trainer.devices * trainer.num_nodes * trainer.accumulate_grad_batches` batches.
        epochs, lr: of dense training or fine-tuning; 0 epochs: the model's checkpoint is the dense network.
        recovery_epochs, recovery_lr: of training after pruning, for any recovery; the rounds of a schedule share the epochs,
            unless each rewinds. null repeats the dense schedule, as NVIDIA's ASP recommends (Mishra et al., "Accelerating
            Sparse Deep Neural Networks", 2021).
        recovery_steps: optimizer steps of recovery instead of epochs; the rounds of a schedule share them.
        optimizer: adamw or sgd.
        momentum: of sgd, in [0, 1).
        nesterov: Nesterov momentum for sgd (Sutskever et al., 2013); false: plain momentum.
        weight_decay: applied to matrices and filters only, not to biases and norms.
        warmup: fraction of all steps in which the learning rate rises linearly from 0.
        decay: shape of the curve after warm-up, from lr to 0: linear, cosine, cosine_restart or constant.
        restarts: of cosine_restart: number of jumps back to lr, equally spaced.
        label_smoothing: e in [0, 1): the target is 1 - e of the label and e of the uniform distribution (Szegedy et al.,
            "Rethinking the Inception Architecture for Computer Vision", 2016). Only in training, not for scores and evaluation.
        gradient_clip: bound on the gradient's global norm; null = none.
        save_epoch_weights: save the weights at the start of every epoch of the dense run, for recovery=weight_rewind.
        ema: decay of a moving average of the weights, in (0, 1), which replaces the weights at the end. null = none.
        ignore: regular expressions; prunable layers whose name matches one (re.search) stay dense.
    """

    batch_size: PositiveInt = 32
    epochs: NonNegativeInt = 3
    lr: LearningRate = 1e-3
    recovery_epochs: PositiveInt | None = None
    recovery_lr: LearningRate | None = None
    recovery_steps: PositiveInt | None = None
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

    def __post_init__(self) -> None:
        if self.recovery_steps is not None and self.recovery_epochs is not None:
            raise InvalidSetting("recovery_steps", self.recovery_steps, "replaces recovery_epochs: set that to null")

    def find_ignore(self, layer: str) -> str | None:
        """The expression of `ignore` that matches this layer's name, or None."""
        return next((expression for expression in self.ignore if re.search(expression, layer)), None)

    def find_ignored(self, layers: Iterable[str]) -> dict[str, str]:
        """The layers that match an expression of `ignore` -> which one."""
        expressions = {layer: self.find_ignore(layer) for layer in layers}
        return {
            layer: f"recipe.ignore: {expression}" for layer, expression in expressions.items() if expression is not None
        }


def learning_rate_factor(step: int, *, total_steps: int, warmup_steps: int, decay: str, restarts: int = 1) -> float:
    """Factor in [0, 1] on the peak learning rate at optimizer step `step` (the first step is 0).

    It rises linearly to 1 over `warmup_steps`, then falls to 0 at `total_steps`: linear 1 - p, cosine (1 + cos(pi p)) / 2,
    or stays at 1, where p is the fraction of steps done after warm-up. cosine_restart falls from 1 to 0 `restarts` + 1 times
    along a cosine, without further warm-up (Loshchilov and Hutter, "SGDR", 2017).
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done, length = step - warmup_steps, max(1, total_steps - warmup_steps)
    progress = min(1.0, done / length)
    if decay == "linear":
        return 1.0 - progress
    if decay == "cosine_restart" and progress < 1:
        progress = done * (restarts + 1) % length / length  # in integers: rounding cannot delay a restart
    if decay in ("cosine", "cosine_restart"):
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


@dataclass(frozen=True)
class Optimization:
    """A learning-rate curve, or a part of it, and its optimizer.

    Args:
        recipe: optimizer, weight decay, warm-up fraction and decay shape.
        lr: peak learning rate.
        total_steps: optimizer steps of the whole curve.
        first_step: start of this training on the curve; above 0 when rewinding.
        fused: use a fused optimizer; results differ by rounding.
    """

    recipe: Recipe
    lr: float
    total_steps: int
    first_step: int = 0
    fused: bool = field(default=False, kw_only=True)

    def factor(self, step: int) -> float:
        """Factor on `lr` at a step of this training, from 0."""
        return learning_rate_factor(
            self.first_step + step,
            total_steps=self.total_steps,
            warmup_steps=int(self.recipe.warmup * self.total_steps),
            decay=self.recipe.decay,
            restarts=self.recipe.restarts,
        )

    def make_optimizer(self, net: nn.Module) -> Optimizer:
        """Create an optimizer at the peak rate, without weight decay for biases and norms."""
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if self.recipe.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, fused=self.fused or None)
        momentum = self.recipe.momentum
        nesterov = self.recipe.nesterov and momentum > 0
        return torch.optim.SGD(groups, lr=self.lr, momentum=momentum, nesterov=nesterov, fused=self.fused or None)

    def build(self, net: nn.Module) -> dict:
        """The return value of Lightning's `configure_optimizers`: a new optimizer with a per-step learning-rate schedule."""
        optimizer = self.make_optimizer(net)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, self.factor), "interval": "step"},
        }


# AdamS: Adam whose momentum shifts, for weights to be pruned, from the gradient to an l1 decay.


class AdamS(Optimizer):
    """For a weight w with gradient g, in step t = 0, 1, ... of T, with a = t / T:

        mu  = b1 mu + (1 - b1) g
        mu' = (1 - a) mu + a decay sign(w)   where the mask prunes w;   mu' = mu   elsewhere
        v   = b2 v + (1 - b2) mu'^2
        w   = w - lr * mu' / (1 - b1^(t+1)) / (sqrt(v / (1 - b2^(t+1))) + eps)

    The l1 decay adapts to each weight: v normalizes it together with the momentum, so weights with large and small gradients
    reach zero alike. It is not accumulated in mu, which would lag behind sign changes. Because v is computed from the momentum
    instead of the gradient, steps are a few times larger than Adam's at the same rate.

    Args:
        params: float32; parameters without a mask are not decayed.
        lr: learning rate.
        decay: lambda, strength of the decay.
        total_steps: T; later steps use a = 1.
        masks: parameter -> bool mask, shaped like it, True = keep; read at every step.
    Source: Huang et al., "CAST: Continuous and Differentiable Semi-Structured Sparsity-Aware Training for Large Language
            Models", 2025, algorithm 1. It does not give b1, b2 and eps; they are Adam's.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        *,
        lr: float,
        decay: float,
        total_steps: int,
        masks: Mapping[Tensor, Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.decay, self.total_steps, self._masks = decay, total_steps, masks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    def _step(self, parameter: Parameter, group: dict) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=0, momentum=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        share = min(1.0, state["step"] / self.total_steps)
        state["step"] += 1
        momentum = state["momentum"].lerp_(parameter.grad, 1 - first)
        mask = self._masks.get(parameter)
        if mask is not None:
            pulled = (1 - share) * momentum + share * self.decay * parameter.sign()
            momentum = torch.where(mask, momentum, pulled)
        square = state["square"].mul_(second).addcmul_(momentum, momentum, value=1 - second)
        size = square.sqrt().div_(math.sqrt(1 - second ** state["step"])).add_(group["eps"])
        parameter.addcdiv_(momentum, size, value=-group["lr"] / (1 - first ** state["step"]))
