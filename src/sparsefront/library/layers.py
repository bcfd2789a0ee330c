"""Which layers of a network are pruned, and why the others are not."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.forward_calls import before_forward
from sparsefront.module_modes import in_eval_mode

Layers = str | Sequence[str] | Callable[[str, nn.Module], bool]
"""Names of layers or glob patterns of them, or a predicate of name and module."""

FIRST_CONVOLUTION = "the first convolution, which reads the input"
LAST_LINEAR = "the last Linear, the head"
UNREACHED = "the example inputs do not reach it"
NAMED_AT_MOST = 8


def choose_layers(
    net: nn.Module, layers: Layers | None, inputs: dict[str, Tensor] | None
) -> tuple[list[str], dict[str, str]]:
    """The Linear and Conv2d layers that `layers` means, in the order of the network.

    Args:
        layers: None = all but the first convolution and the last Linear that the inputs reach.
        inputs: keyword arguments of one forward; None: the order of the modules stands for the order of the calls.
    Returns:
        the chosen layers, and of the others the reason why they were left out: all of them under None, else none.
    Raises:
        InvalidSetting: a name or a pattern that finds no layer, or a choice that leaves none.
    """
    weighted = weighted_layers(net)
    if layers is None:
        return _default(net, weighted, inputs)
    if callable(layers):
        wanted = [name for name in weighted if layers(name, net.get_submodule(name))]
        if not wanted:
            raise InvalidSetting("layers", getattr(layers, "__name__", layers), f"chooses no layer of {_few(weighted)}")
        return wanted, {}
    patterns = [layers] if not isinstance(layers, Iterable) or isinstance(layers, str) else list(layers)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidSetting("layers", pattern, "is a name, a glob pattern, a list of them, or a predicate")
        found = [pattern] if pattern in weighted else fnmatch.filter(weighted, pattern)
        if not found:
            raise InvalidSetting("layers", pattern, f"finds no Linear or Conv2d layer; there are {_few(weighted)}")
        chosen.update(dict.fromkeys(found))
    if not patterns:
        raise InvalidSetting("layers", layers, f"names no layer; there are {_few(weighted)}")
    return [name for name in weighted if name in chosen], {}


def weighted_layers(net: nn.Module) -> list[str]:
    """Names of all Linear and Conv2d modules, in the order of the network; one that two parents share is named once."""
    return [name for name, module in net.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def weight_of(net: nn.Module, name: str) -> Tensor:
    """The weight of a layer: Linear [N, K], Conv2d [C_out, C_in, kh, kw]."""
    weight = net.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    return weight


def called_layers(net: nn.Module, inputs: dict[str, Tensor]) -> list[str]:
    """The Linear and Conv2d layers in the order of their first call in one forward, which leaves no trace."""
    modules = {name: net.get_submodule(name) for name in weighted_layers(net)}
    called: dict[str, None] = {}
    with in_eval_mode(net), before_forward(modules, lambda name, *_: called.setdefault(name)), torch.no_grad():
        net(**inputs)
    return list(called)


def _default(net: nn.Module, weighted: list[str], inputs: dict[str, Tensor] | None) -> tuple[list[str], dict[str, str]]:
    called = weighted if inputs is None else called_layers(net, inputs)
    convolutions = [name for name in called if isinstance(net.get_submodule(name), nn.Conv2d)]
    linears = [name for name in called if isinstance(net.get_submodule(name), nn.Linear)]
    reasons = {name: UNREACHED for name in weighted if name not in called}
    if convolutions:
        reasons[convolutions[0]] = FIRST_CONVOLUTION
    if linears:
        reasons[linears[-1]] = LAST_LINEAR
    chosen = [name for name in weighted if name not in reasons]
    if not chosen:
        left_out = "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "it has no Linear and no Conv2d"
        raise InvalidSetting("layers", None, f"leaves no layer to prune ({left_out}); name those to prune")
    return chosen, reasons


def _few(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "") or "none"


def ignored_layers(chosen: Sequence[str], ignore: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Of the chosen layers those that stay dense all the same -> why.

    Args:
        ignore: names or glob patterns, or a dict of them -> why.
    Raises:
        InvalidSetting: a name or a pattern that finds none of the chosen layers.
    """
    names = [ignore] if not isinstance(ignore, Iterable) or isinstance(ignore, str) else ignore
    reasons = ignore if isinstance(ignore, Mapping) else {pattern: f"ignore={pattern}" for pattern in names}
    found: dict[str, str] = {}
    for pattern, why in reasons.items():
        if not isinstance(pattern, str):
            raise InvalidSetting(
                "ignore", pattern, "is a name, a glob pattern, a list of them, or a dict of them -> why"
            )
        matches = [pattern] if pattern in chosen else fnmatch.filter(chosen, pattern)
        if not matches:
            raise InvalidSetting("ignore", pattern, f"finds none of the layers to prune: {_few(list(chosen))}")
        found |= dict.fromkeys(matches, why)
    return found
