"""What the blocks of a network return on the way, read off by forward hooks."""

from typing import Any

from torch import Tensor, nn


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
