"""fp8-aware training: weights and activations are rounded as in the fp8 network, gradients are not."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sparsefront_kernels.quantized.quantize import dequantize, quantize
from torch import Tensor, nn


class _Rounded(torch.autograd.Function):
    """Straight-through estimator: rounds in the forward pass, identity in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return round_rows(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def round_rows(x: Tensor) -> Tensor:
    """Round x to e4m3 with one scale per row (`quantize`); zeros stay zero.

    Args:
        x: [..., K], any float dtype.
    Returns:
        of x's shape and dtype
    """
    rows = x.detach().reshape(-1, x.shape[-1])
    return dequantize(quantize(rows, "fp8")).view(x.shape).to(x.dtype)


def apply_quantized(layer: nn.Linear, x: Tensor) -> Tensor:
    """Compute a Linear in fp8, with one scale per output for weights and one per row for activations.

    Args:
        x: [..., K].
    Returns:
        [..., N].
    """
    return F.linear(_Rounded.apply(x), _Rounded.apply(layer.weight), layer.bias)


class FakeQuantize(pl.Callback):
    """Lightning callback that makes Linear layers compute as in fp8 during a fit. The weights in memory, checkpoints and masks
    are unchanged; pruned weights stay zero in fp8.

    Args:
        net: the network that is trained.
        layers: names of its modules; only Linear layers are affected.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str]) -> None:
        modules = [net.get_submodule(name) for name in layers]
        self._layers = [layer for layer in modules if isinstance(layer, nn.Linear)]

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for layer in self._layers:
            layer.forward = partial(apply_quantized, layer)  # type: ignore[method-assign]

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._remove()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._remove()

    def _remove(self) -> None:
        for layer in self._layers:
            layer.__dict__.pop("forward", None)
