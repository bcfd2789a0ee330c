"""The blocks that a network repeats."""

from torch import nn


def block_names(net: nn.Module, layers: list[str]) -> list[str]:
    """The network's blocks: the outermost members of a ModuleList or Sequential that have one of `layers` inside.

    Args:
        layers: names of the prunable Linear and Conv layers; a list of bare layers is no list of blocks.
    Returns:
        names in the network's order: the blocks of a transformer, the bottlenecks of a ResNet.
    """
    lists = {name for name, module in net.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    blocks: list[str] = []
    for name, _ in net.named_modules():
        listed = name and name.rpartition(".")[0] in lists
        nested = any(name.startswith(f"{block}.") for block in blocks)
        if listed and not nested and any(layer.startswith(f"{name}.") for layer in layers):
            blocks.append(name)
    return blocks
