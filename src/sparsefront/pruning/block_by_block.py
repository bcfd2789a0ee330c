"""A network that writes text, block by block: one block on the device at a time, with what its inputs are by then.

    embedding -> block 0 -> block 1 -> block 2 -> ...
                 known      runs       not reached

Of each batch what the last block has returned is kept. To run the next one, the network itself is called: the blocks before
return that at once, the block runs, and what would follow is left. So each block is called as the network calls it, with its
masks, its positions and its caches, whatever the architecture; and nothing needs more room than one block and its activations.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import block_names, is_of_transformers


def chain_of_blocks(net: nn.Module, layers: Sequence[str]) -> list[str]:
    """The blocks that the layers lie in, in their order, where the network is one that transformers writes text with: one list of
    blocks, each called once, on what the one before returned. Empty for any other.
    """
    generates: Any = getattr(net, "can_generate", None)
    if not is_of_transformers(net) or generates is None or not generates():
        return []
    config: Any = net.config
    if config.is_encoder_decoder:
        return []
    blocks = block_names(net, list(layers))
    if len({name.rpartition(".")[0] for name in blocks}) != 1:
        return []
    return blocks if all(any(layer.startswith(f"{block}.") for block in blocks) for layer in layers) else []


class _Done(Exception):
    """The block has run."""


class BlockRun:
    """One block, while it is on the device.

    Attributes:
        name: of the block in the network.
        last: whether no block comes after it.
        changed: the caller sets it after it has changed weights: what the block returns is then computed once more.
    """

    def __init__(self, name: str, run: Callable[[int], Any], batches: int, *, last: bool) -> None:
        self.name, self.last, self.changed = name, last, False
        self._run, self._returned = run, [None] * batches

    def __call__(self, batch: int) -> None:
        """Run the block on a batch, by its number."""
        self._returned[batch] = self._run(batch)

    def returned(self) -> list[Any]:
        """What it returns for each batch, with the weights as they are."""
        if self.changed:
            self._returned, self.changed = [None] * len(self._returned), False
        for batch, known in enumerate(self._returned):
            if known is None:
                self(batch)
        return self._returned


@torch.no_grad()
def run_blocks(
    net: nn.Module, blocks: Sequence[str], forward: Callable[[Any], Any], batches: Sequence[Any], device: torch.device
) -> Iterator[BlockRun]:
    """Each block in its turn, on the device; the block goes back to where it was before the next comes.

    Args:
        net: in eval mode, its embedding where the batches are.
        blocks: as `chain_of_blocks` gives them.
        forward: calls the network with a batch.
        device: of the block's weights and of what it is given and returns.
    Raises:
        ValueError: a block that the network does not call in its turn; names it.
    """
    modules = [net.get_submodule(name) for name in blocks]
    known: list[Any] = [None] * len(batches)

    def run(place: int, batch: int) -> Any:
        with _others_known(modules[:place], known[batch]), _stopping_behind(modules[place], device) as returned:
            try:
                forward(batches[batch])
            except _Done:
                return returned.pop()
        raise ValueError(f"the network never calls {blocks[place]} after the blocks before: it cannot be run by itself")

    for place, module in enumerate(modules):
        home = next(module.parameters()).device
        module.to(device)
        try:
            block = BlockRun(blocks[place], partial(run, place), len(batches), last=place == len(blocks) - 1)
            yield block
            if not block.last:
                known = block.returned()
        finally:
            module.to(home)


@contextmanager
def _others_known(modules: Sequence[nn.Module], returned: Any) -> Iterator[None]:
    """While open, these modules return what is known, and compute nothing."""
    for module in modules:
        module.forward = lambda *args, **kwargs: returned
    try:
        yield
    finally:
        for module in modules:
            del module.forward


@contextmanager
def _stopping_behind(module: nn.Module, device: torch.device) -> Iterator[list[Any]]:
    """While open, the module is given tensors on the device, and ends the forward; the list then holds what it returned."""
    found: list[Any] = []

    def give(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        moved: tuple[Any, Any] = tree_map_only(Tensor, lambda value: value.to(device), (args, kwargs))
        return moved

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        found.append(output)
        raise _Done

    hooks = [
        module.register_forward_pre_hook(give, with_kwargs=True, prepend=True),
        module.register_forward_hook(stop, with_kwargs=True),
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def inside(block: str, layers: Sequence[str]) -> list[str]:
    """Those of the layers that lie in a block."""
    return [layer for layer in layers if layer.startswith(f"{block}.")]


def require_chain(importance: Any, net: nn.Module, layers: Sequence[str]) -> None:
    """Raise InvalidSetting where an importance is to go from block to block of a network that is no chain of them.

    Args:
        net: also on the meta device.
    """
    if getattr(importance, "sequential", False) and not chain_of_blocks(net, layers):
        allowed = "goes from block to block, as in networks of transformers that write text, and this is none"
        raise InvalidSetting("importance.sequential", True, allowed)
