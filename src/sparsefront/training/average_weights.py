"""Exponential moving average (EMA) of the weights, under masks."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront.networks import zero_pruned


class AverageWeights(pl.Callback):
    """Averages the weights after every optimizer step: average <- decay * average + (1 - decay) * weight.

    The averages replace the weights during validation and permanently at the end. After masks tighten, averages still contain
    traces of pruned weights, so the current masks are applied whenever they are swapped in. Floating-point buffers (running
    statistics) are averaged too.

    Lightning's `EMAWeightAveraging` is not used: it averages every buffer, so a bool mask would keep whatever was ever kept,
    and writes averaged masks back to the network.

    Args:
        decay: in (0, 1); the average spans about 1 / (1 - decay) steps.
    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; the exponential form as
        in Tarvainen and Valpola, "Mean teachers are better role models", 2017.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._averages: dict[str, Tensor] = {}
        self._set_aside: dict[str, Tensor] = {}
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        current = dict(_list_averages(module))
        if not self._averages:
            self._averages = {name: tensor.clone() for name, tensor in current.items()}
        self._averages = {name: average.to(current[name].device) for name, average in self._averages.items()}
        self._step = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:
            return  # gradients were only accumulated
        self._step = trainer.global_step
        current = dict(_list_averages(module))
        torch._foreach_lerp_(list(self._averages.values()), [current[n] for n in self._averages], 1 - self.decay)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._averages:
            self._set_aside = {name: tensor.clone() for name, tensor in _list_averages(module)}
            self._put_in(module)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        _copy(self._set_aside, module)
        self._set_aside = {}

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._put_in(module)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._averages = dict(state_dict["averages"])

    def _put_in(self, module: nn.Module) -> None:
        _copy(self._averages, module)
        zero_pruned(module)


def _list_averages(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The averaged tensors, by their names in the network."""
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer


def _copy(source: dict[str, Tensor], module: nn.Module) -> None:
    for name, tensor in _list_averages(module):
        if name in source:
            tensor.copy_(source[name])
