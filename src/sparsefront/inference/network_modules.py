"""Modules of a network: exchanged for others, and rid of what no kernel reads."""

from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn


def replace_module(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` hangs: a layer shared by several parents stays one layer."""
    for parent in list(net.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children would skip a second name
            if child is old:
                setattr(parent, attribute, new)


def release_formats(net: nn.Module) -> None:
    """Move every format to the CPU whose kernel reads a packed copy of it; layers still give, move and copy their weight."""
    for module in net.modules():
        if isinstance(module, SparseLayer):
            module.release_format()
