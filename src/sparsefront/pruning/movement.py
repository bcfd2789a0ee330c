"""Lightning callback that adds up, while a network trains, which way its weights move."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsefront.masks.weight_view import as_matrix


class AccumulateMovement(pl.Callback):
    """Sums -w * dL/dw at every optimizer step, with the weight before the step.

    The gradient is the one that the step is about to use, before clipping: unscaled under AMP, averaged over the ranks
    under DDP (so every rank holds the same sum) and over the batches of an accumulated step. A step that an AMP scaler is
    going to skip because a gradient overflowed adds nothing. Pruned weights are zero and so add nothing either.

    The sums are part of a checkpoint; one callback may see several trainings, and goes on adding.

    Args:
        net: the network that is trained.
        layers: names of its modules with a `weight`.
    """

    def __init__(self, net: nn.Module, layers: list[str]) -> None:
        self._modules = {name: net.get_submodule(name) for name in layers}
        self._sums: dict[str, Tensor] = {}

    def sums(self) -> dict[str, Tensor]:
        """Layer name -> float32 [N, K] on the weight's device; zero before the first step. To be read
        only: of a Linear it is the sum itself."""
        return {name: as_matrix(self._sum_of(name)) for name in self._modules}

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        finite = _all_finite(optimizer) if trainer.scaler is not None else None
        for name, layer in self._modules.items():
            gradient = layer.weight.grad
            if gradient is None:
                continue
            if (
                finite is not None
            ):  # decided on the device: waiting for the answer would cost every step a synchronization
                gradient = torch.where(finite, gradient, torch.zeros_like(gradient))
            self._sum_of(name).addcmul_(layer.weight, gradient, value=-1)

    def state_dict(self) -> dict[str, Any]:
        return {name: self._sum_of(name).to("cpu", copy=True) for name in self._modules}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sums = {name: state_dict[name].clone() for name in self._modules}

    def _sum_of(self, name: str) -> Tensor:
        """On the device where the weight is by now: the network moves to its own when training begins."""
        weight = self._modules[name].weight
        if name not in self._sums:
            self._sums[name] = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
        elif self._sums[name].device != weight.device:
            self._sums[name] = self._sums[name].to(weight.device)
        return self._sums[name]


def _all_finite(optimizer: Optimizer) -> Tensor:
    """Bool scalar: whether an AMP scaler is going to take this step."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
