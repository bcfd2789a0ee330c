"""What the blocks of a network return on the way, read off by forward hooks."""

from typing import Any

from torch import Tensor, nn


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


class HiddenStates:
    """Keeps the output of named modules of a network, of one forward at a time.

    Args:
        net: the network; hooks stay on it until `remove`.
        names: of modules that return a tensor, or a tuple whose first entry is the hidden state.
    """

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        self._names = names
        self._found: dict[str, Tensor] = {}
        self._listening = False
        self._handles = [net.get_submodule(name).register_forward_hook(self._keep(name)) for name in names]

    def listen(self) -> None:
        """Forget what was kept; keep what the next forward returns."""
        self._found.clear()
        self._listening = True

    def take(self) -> list[Tensor]:
        """The hidden states of the forward since `listen`, in the order of `names`; afterwards none are kept.

        Activations that are recomputed in the backward pass (gradient checkpointing) come later, and are not listened to.
        """
        self._listening = False
        return [self._found.pop(name) for name in self._names]

    def remove(self) -> None:
        """Take the hooks off the network."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._listening:
                self._found[name] = output[0] if isinstance(output, tuple) else output

        return hook
