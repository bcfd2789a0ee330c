"""Bytes of the weights that a layer or a block multiplies by."""

from sparsefront_kernels import SparseFormat
from torch import nn


def stored_bytes(module: nn.Module) -> int:
    """Values and indices where weights are compressed; all parameters of what holds none."""
    compressed = [part.format for part in module.modules() if isinstance(getattr(part, "format", None), SparseFormat)]
    if compressed:
        return sum(stored.nbytes for stored in compressed)
    return module.weight.nbytes if hasattr(module, "weight") else sum(part.nbytes for part in module.parameters())
