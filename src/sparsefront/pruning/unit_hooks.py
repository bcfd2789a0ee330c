"""Hooks by which a masked network computes what the narrower one will: norms over the units that are left, and dense layers
that read these alone. Pruned features hold biases and embeddings that the masks do not reach, and nothing reads them.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import PrunableLayer
from sparsefront.patterns.ties import Tie
from sparsefront.patterns.width import units_left


class _Hook:
    of_units = True


class NormOverUnits(_Hook):
    """Replaces the output of a norm: statistics over these units, and zeros in the others.

    Args:
        norm: gives its settings; the weights are those of the norm that is called.
        units: indices of those that are left.
        dim: of them in the input, counted from the end.
    """

    def __init__(self, norm: nn.Module, units: Tensor, dim: int) -> None:
        self.units, self.dim = units, dim
        self.narrower: Any = copy.copy(norm)
        self.narrower._forward_hooks, self.narrower._forward_pre_hooks = OrderedDict(), OrderedDict()
        self.narrower._parameters = {
            name: None if own is None else nn.Parameter(torch.empty(len(units), device="meta"))
            for name, own in norm._parameters.items()
        }
        if hasattr(norm, "normalized_shape"):
            vars(self.narrower)["normalized_shape"] = (len(units),)

    def __call__(self, norm: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        (x,) = args
        units = self.units = self.units.to(x.device)
        own = [name for name, own in self.narrower._parameters.items() if own is not None]
        weights = {name: getattr(norm, name).index_select(0, units) for name in own}
        y = functional_call(self.narrower, weights, (x.index_select(self.dim, units),))
        return torch.zeros_like(output, dtype=y.dtype).index_copy(self.dim, units, y)


@dataclass(eq=False)
class ReadUnits(_Hook):
    """Makes a dense layer read zeros instead of pruned units.

    Args:
        pruned: bool [units].
        pixels: dims after the channels.
    """

    pruned: Tensor
    pixels: int

    def __call__(self, layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pruned = self.pruned = self.pruned.to(args[0].device)
        return args[0].masked_fill(pruned.view(-1, *[1] * self.pixels), 0.0), *args[1:]


def hook_units(net: nn.Module, ties: Iterable[Tie], masks: Mapping[str, Tensor]) -> None:
    """Make the network compute what it will without the units that masks prune; earlier hooks are replaced.

    Args:
        ties: those with `norms` or `parts` need hooks.
        masks: layer -> bool, [N, K] or shaped like the weight.
    """
    ties = [tie for tie in ties if tie.parts or tie.norms]
    if not ties:
        return
    unhook_units(net)
    modules = dict(net.named_modules())
    for tie in ties:
        units = units_left(tie, {layer: as_matrix(masks[layer]) for layer in tie.layers})
        if bool(units.all()):
            continue
        for name, dim in tie.norms.items():
            hook = NormOverUnits(modules[name], units.nonzero().flatten(), dim)
            modules[name].register_forward_hook(hook, prepend=True)  # before others, which may change its output
        weights = {
            id(modules[name.rpartition(".")[0]]._parameters["weight"])
            for name, dims in tie.parts.items()
            if 1 in dims and name.rpartition(".")[2] == "weight"
        }
        for name, layer in modules.items():  # a head may share its weight with the embedding that is named
            if isinstance(layer, PrunableLayer) and id(layer.weight) in weights and name not in tie.inputs:
                layer.register_forward_pre_hook(ReadUnits(~units, layer.weight.dim() - 2))


def hooks_of_units(net: nn.Module) -> list[tuple[dict[int, Any], int]]:
    """Dicts of hooks, and the keys in them."""
    return [
        (hooks, key)
        for module in net.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for key, hook in hooks.items()
        if isinstance(hook, _Hook)
    ]


def unhook_units(net: nn.Module) -> None:
    for hooks, key in hooks_of_units(net):
        del hooks[key]
