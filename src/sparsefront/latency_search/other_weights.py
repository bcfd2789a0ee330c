"""A network with other weights in some layers, for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from sparsefront.masks.weight_view import like_weight


@contextmanager
def replaced(net: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The network with other weights.

    Args:
        weights: layer -> [N, K], or in the shape of its weight; on any device, in any float dtype.
    """
    own = {layer: net.get_submodule(layer).weight for layer in weights}
    dense = {layer: weight.data for layer, weight in own.items()}
    try:
        for layer, weight in own.items():
            weight.data = like_weight(weights[layer], weight).to(weight)
        yield
    finally:
        for layer, weight in own.items():
            weight.data = dense[layer]


@contextmanager
def masked(net: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """The network with pruned weights; the others stay.

    Args:
        masks: layer -> bool [N, K], True = keep.
    """
    weights = {layer: net.get_submodule(layer).weight.data for layer in masks}
    gone = {layer: ~like_weight(masks[layer], weight).to(weight.device) for layer, weight in weights.items()}
    with replaced(net, {layer: weight.masked_fill(gone[layer], 0.0) for layer, weight in weights.items()}):
        yield
