"""The inputs of a network, by the names of its forward's arguments."""

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""What a forward takes: one tensor, several in order, or several by name."""


def named_inputs(net: nn.Module, inputs: object, *, argument: str = "example_inputs") -> dict[str, Tensor]:
    """The same inputs as keyword arguments of `net`.

    Args:
        inputs: `Inputs`; positional ones get the names that `net.forward` gives them.
        argument: what they are called in messages.
    Raises:
        InvalidSetting: none, something else than tensors, or positional ones that the forward does not name.
    """
    return inputs_by_name(forward_names(net), inputs, argument=argument)


def inputs_by_name(names: tuple[str, ...] | None, inputs: object, *, argument: str) -> dict[str, Tensor]:
    """`named_inputs` of a network whose `forward_names` are given."""
    named = _by_name(names, inputs, argument)
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InvalidSetting(f"{argument}[{name!r}]", type(value).__name__, "must be a tensor")
    if not named:
        raise InvalidSetting(argument, inputs, "holds no tensor: give what the network is called with, such as (x,)")
    return named


def named_inputs_on(net: nn.Module, inputs: object, *, argument: str = "example_inputs") -> dict[str, Tensor]:
    """`named_inputs` that lie on one device, that of the network's parameters.

    Raises:
        InvalidSetting: as `named_inputs`, or tensors on another device than the network.
    """
    named = named_inputs(net, inputs, argument=argument)
    device = device_of(net)
    for name, value in named.items():
        if value.device != device:
            raise InvalidSetting(f"{argument}[{name!r}]", value.device, f"must be on the network's device, {device}")
    return named


def require_network(net: object, *, argument: str = "net") -> None:
    """Raises:
    InvalidSetting: something else than a network.
    """
    if not isinstance(net, nn.Module):
        raise InvalidSetting(argument, type(net).__name__, "is a torch.nn.Module")


def device_of(net: nn.Module) -> torch.device:
    """Where the network's first parameter lies; the CPU where it has none."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))


def forward_names(net: nn.Module) -> tuple[str, ...] | None:
    """The arguments that the network's forward names; None where it only has **kwargs."""
    parameters = inspect.signature(net.forward).parameters.values()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters if parameter.kind in by_keyword) or None


def _by_name(names: tuple[str, ...] | None, inputs: object, argument: str) -> dict[str, Tensor]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    positional = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not isinstance(positional, Sequence):
        given = type(inputs).__name__
        raise InvalidSetting(argument, given, "is a tensor, a sequence of tensors, or tensors by argument name")
    names = names or ()
    if len(positional) > len(names):
        takes = f"names {', '.join(names)}" if names else "names none of its arguments"
        raise InvalidSetting(argument, f"{len(positional)} tensors", f"the network's forward {takes}")
    return dict(zip(names, positional, strict=False))
