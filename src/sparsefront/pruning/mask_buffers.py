"""Where a network keeps its masks. All that a training needs to know of them: it does not depend on how they are made."""

import torch
from torch import nn

BUFFER = "weight_mask"


@torch.no_grad()
def zero_pruned(module: nn.Module) -> None:
    """Zero in place every weight below a module that its mask prunes."""
    for layer in module.modules():
        if hasattr(layer, BUFFER):
            layer.weight.masked_fill_(~getattr(layer, BUFFER), 0.0)
