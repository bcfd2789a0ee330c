"""Exchanging a module inside a network."""

from torch import nn


def replace_module(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` hangs: a layer shared by several parents stays one layer."""
    for parent in list(net.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children would skip a second name
            if child is old:
                setattr(parent, attribute, new)
