"""Optimizer and learning-rate schedule of one training, built from a recipe."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sparsefront.training.recipe import Recipe, learning_rate_factor


@dataclass(frozen=True)
class Optimization:
    """One pass over (a part of) a learning-rate curve.

    Args:
        recipe: optimizer, weight decay, warm-up fraction and decay shape.
        lr: peak learning rate.
        total_steps: optimizer steps of the whole curve.
        first_step: where on the curve this training starts; above 0 when the rate is rewound to a point of the dense run.
        fused: AdamW takes a step in one kernel in place of one for each of its operations; results differ by rounding.
    """

    recipe: Recipe
    lr: float
    total_steps: int
    first_step: int = 0
    fused: bool = field(default=False, kw_only=True)

    def factor(self, step: int) -> float:
        """Factor on `lr` at step `step` of this training, counted from 0."""
        return learning_rate_factor(
            self.first_step + step,
            total_steps=self.total_steps,
            warmup_steps=int(self.recipe.warmup * self.total_steps),
            decay=self.recipe.decay,
            restarts=self.recipe.restarts,
        )

    def make_optimizer(self, net: nn.Module) -> Optimizer:
        """A fresh one at the peak rate; biases and norms have no weight decay."""
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
        return torch.optim.SGD(groups, lr=self.lr, momentum=momentum, nesterov=nesterov)

    def build(self, net: nn.Module) -> dict:
        """What Lightning's `configure_optimizers` returns: a fresh optimizer, its rate updated after every step."""
        optimizer = self.make_optimizer(net)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, self.factor), "interval": "step"},
        }
