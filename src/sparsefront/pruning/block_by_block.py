"""Run a causal language model block by block, with only one block on the device at a time.

    embedding -> block 0 -> block 1 -> block 2 -> ...
                 known      runs       not reached

The outputs of the last block are kept for every batch. To run the next block, the whole network is called: earlier blocks
return the kept outputs, the block runs, and the forward is aborted. Each block is thus called with its own masks, positions
and caches, whatever the architecture, and memory never exceeds one block and its activations.
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
    """The blocks that contain the layers, in order, if the network is a causal language model of transformers: one list of
    blocks, each called once, on the output of the previous one. Empty for any other network.
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
    """Raised to abort a forward after the block has run."""


class BlockRun:
    """One block while it is on the device.

    Attributes:
        name: of the block in the network.
        last: whether it is the last block.
        changed: set by the caller after changing weights: the block's outputs are then recomputed.
    """

    def __init__(self, name: str, run: Callable[[int], Any], batches: int, *, last: bool) -> None:
        self.name, self.last, self.changed = name, last, False
        self._run, self._returned = run, [None] * batches

    def __call__(self, batch: int) -> None:
        """Run the block on a batch, by index."""
        self._returned[batch] = self._run(batch)

    def recompute(self) -> list[Any]:
        """The block's output for each batch, with its current weights."""
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
    """Yield each block in order, on the device; it is moved back before the next one.

    Args:
        net: in eval mode, with its embedding on the batches' device.
        blocks: from `chain_of_blocks`.
        forward: calls the network with a batch.
        device: of the block's weights, inputs and outputs.
    Raises:
        ValueError: the network does not call a block in order; names it.
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
                known = block.recompute()
        finally:
            module.to(home)


@contextmanager
def _others_known(modules: Sequence[nn.Module], returned: Any) -> Iterator[None]:
    """Context in which these modules return a known value without computing."""
    for module in modules:
        module.forward = lambda *args, **kwargs: returned
    try:
        yield
    finally:
        for module in modules:
            del module.forward


@contextmanager
def _stopping_behind(module: nn.Module, device: torch.device) -> Iterator[list[Any]]:
    """Context in which the module's inputs are moved to the device and its call aborts the forward; yields a list that then
    holds its output.
    """
    outputs: list[Any] = []

    def give(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        moved: tuple[Any, Any] = tree_map_only(Tensor, lambda value: value.to(device), (args, kwargs))
        return moved

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        outputs.append(output)
        raise _Done

    hooks = [
        module.register_forward_pre_hook(give, with_kwargs=True, prepend=True),
        module.register_forward_hook(stop, with_kwargs=True),
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def inside(block: str, layers: Sequence[str]) -> list[str]:
    """The layers that lie in a block, or are it."""
    return [layer for layer in layers if f"{layer}.".startswith(f"{block}.")]


def require_chain(importance: Any, net: nn.Module, layers: Sequence[str]) -> None:
    """Raise InvalidSetting if an importance is sequential but the network is not a chain of blocks.

    Args:
        net: may be on the meta device.
    """
    if getattr(importance, "sequential", False) and not chain_of_blocks(net, layers):
        allowed = "goes from block to block, as in networks of transformers that write text, and this is none"
        raise InvalidSetting("importance.sequential", True, allowed)
