"""A network whose layers are pruned for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from sparsefront.masks.weight_view import like_weight


@contextmanager
def masked(net: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """The network with pruned weights; the others stay.

    Args:
        masks: layer -> bool [N, K], True = keep, on any device.
    """
    weights = {layer: net.get_submodule(layer).weight for layer in masks}
    dense = {layer: weight.data for layer, weight in weights.items()}
    try:
        for layer, weight in weights.items():
            gone = ~like_weight(masks[layer], weight).to(weight.device)
            weight.data = dense[layer].masked_fill(gone, 0.0)
        yield
    finally:
        for layer, weight in weights.items():
            weight.data = dense[layer]
