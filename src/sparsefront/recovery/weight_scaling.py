"""Scales of parts of a weight's rows, trained beside the weight and multiplied into it in the end."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparsefront.masks.weight_view import as_matrix, like_weight


class RowScales(nn.Module):
    """Multiplies each of `groups` parts of neighboring columns of each row by a scale of its own, 1 to begin with.

    Args:
        weight: Linear or Conv weight, [N, K] or viewed so; K need not be a multiple of `groups`.
    Source: Huang et al., "CAST", 2025, section IV-B, equations 11 and 12.
    """

    def __init__(self, weight: Tensor, groups: int) -> None:
        super().__init__()
        rows, columns = as_matrix(weight).shape
        self.scale = nn.Parameter(weight.new_ones(rows, groups))
        part = torch.arange(columns, device=weight.device) * groups // columns
        self.register_buffer("part", part, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return like_weight(as_matrix(weight) * self.scale[:, self.part], weight)


@contextmanager
def scaled_weights(net: nn.Module, layers: Iterable[str], groups: int) -> Iterator[dict[str, nn.Parameter]]:
    """While it lasts, the layers compute with scaled weights; then these are their weights and the scales are gone.

    Yields:
        layer name -> the weight without its scales, which is what trains.
    """
    modules = {layer: net.get_submodule(layer) for layer in layers}
    order = {layer: list(module._parameters) for layer, module in modules.items()}
    for module in modules.values():
        parametrize.register_parametrization(module, "weight", RowScales(module.weight.detach(), groups), unsafe=True)
    try:
        yield {layer: module.parametrizations["weight"].original for layer, module in modules.items()}
    finally:
        for layer, module in modules.items():
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
            for name in order[layer]:  # the weight came back last; optimizers and checkpoints go by the order
                module._parameters[name] = module._parameters.pop(name)
