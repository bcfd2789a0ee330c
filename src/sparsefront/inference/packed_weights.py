"""Weights of a sparse network as its kernels read them, and nothing twice on the device."""

from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn


def release_formats(net: nn.Module) -> None:
    """Move every format to the CPU whose kernel reads a packed copy of it; layers still give, move and copy their weight."""
    for module in net.modules():
        if isinstance(module, SparseLayer):
            module.release_format()
