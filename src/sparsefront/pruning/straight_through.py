"""Lightning callback that trains all weights through masks which are made again at every step."""

from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsefront.masks.weight_view import like_weight


class StraightThrough(pl.Callback):
    """Forward and backward with W * M(W), M made from W before every optimizer step; the step changes all of W.

    The gradient by the masked weights is taken for that by W (straight through the mask), and pruned weights are drawn
    towards zero, so that masks settle:

        W <- step of the optimizer on W with the gradient  dL/d(W * M) + decay * (1 - M) * W

    Between steps the layers hold W * M, during a step W: no module is changed, so state dict, DDP and gradient
    checkpointing see plain parameters. The added term is part of what gradient clipping sees. Under AdamW it also enters
    the moments.

    Args:
        net: the network that is trained; it holds W, unmasked, whenever no training or validation runs.
        layers: names of its modules with a `weight`.
        make_masks: layer name -> weight, to layer name -> bool mask, [N, K] or shaped like the weight.
        decay: lambda_W; 0 = the plain straight-through estimator.
    Source: Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch", 2021, section 4
        (SR-STE).
    """

    def __init__(
        self,
        net: nn.Module,
        layers: list[str],
        *,
        make_masks: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
        decay: float,
    ) -> None:
        self._weights = {name: net.get_submodule(name).weight for name in layers}
        self._make_masks, self.decay = make_masks, decay
        self._dense: dict[str, Tensor] = {}
        self._masks: dict[str, Tensor] = {}

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._dense:  # while gradients accumulate, the masks stay
            self._mask()

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        for name, weight in self._weights.items():
            if weight.grad is None:  # a frozen layer, which no step changes
                continue
            pruned = self._dense[name].masked_fill(self._masks[name], 0.0)
            weight.grad.add_(pruned, alpha=self.decay)
        self._unmask()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._mask()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._unmask()

    def masks(self) -> dict[str, Tensor]:
        """The masks of the weights as they are: layer name -> bool, shaped like the weight."""
        made = self._make_masks({name: weight.detach() for name, weight in self._weights.items()})
        return {name: like_weight(made[name], weight) for name, weight in self._weights.items()}

    @torch.no_grad()
    def _mask(self) -> None:
        self._masks = self.masks()
        self._dense = {name: weight.detach().clone() for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.mul_(self._masks[name])

    @torch.no_grad()
    def _unmask(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self._dense[name])
        self._dense, self._masks = {}, {}
