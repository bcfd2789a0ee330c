"""Training in fp8: products see weights and activations rounded as the fp8 network will round them, gradients do not."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sparsefront_kernels.quantized.quantize import dequantize, quantize
from torch import Tensor, nn


class _Rounded(torch.autograd.Function):
    """The straight-through estimator: rounded forward, and backward as if it were not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return rounded(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def rounded(x: Tensor) -> Tensor:
    """x as e4m3 holds it, with one scale for each row (`quantize`). A zero stays zero.

    Args:
        x: [..., K], any float dtype.
    Returns:
        of x's shape and dtype.
    """
    rows = x.detach().reshape(-1, x.shape[-1])
    return dequantize(quantize(rows, "fp8")).view(x.shape).to(x.dtype)


def quantized_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a Linear gives in fp8: weights with a scale per output, activations with one per row.

    Args:
        x: [..., K].
    Returns:
        [..., N].
    """
    return F.linear(_Rounded.apply(x), _Rounded.apply(layer.weight), layer.bias)


class FakeQuantize(pl.Callback):
    """While a fit lasts its Linear layers compute what fp8 ones would. Weights stay as they are in memory, in checkpoints and
    under masks: a pruned one is zero in fp8 too.

    Args:
        net: the network that is trained.
        layers: names of its modules; of others than Linear nothing changes.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str]) -> None:
        found = [net.get_submodule(name) for name in layers]
        self._layers = [layer for layer in found if isinstance(layer, nn.Linear)]

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for layer in self._layers:
            layer.forward = partial(quantized_linear, layer)  # type: ignore[method-assign]

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._remove()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._remove()

    def _remove(self) -> None:
        for layer in self._layers:
            layer.__dict__.pop("forward", None)
