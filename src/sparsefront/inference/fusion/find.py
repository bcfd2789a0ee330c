"""Which modules are blocks, and how the network calls them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsefront.forward_calls import before_forward

CONTAINERS = (nn.ModuleList, nn.Sequential)
FEWEST_LINEARS = 2  # a block with fewer has no neighbors to fuse


@dataclass(frozen=True)
class BlockCall:
    """What a block receives in the observed forward: its last call, if there are several."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def find_chains(net: nn.Module) -> dict[str, list[str]]:
    """Container -> the names of its blocks, in order.

    Containers are the innermost ModuleLists and Sequentials of which each element that has Linears at all has at least two.
    """
    chains = {}
    for name, module in net.named_modules():
        if isinstance(module, CONTAINERS) and _is_innermost(module):
            prefix = f"{name}." if name else ""
            chains[name] = [prefix + child for child, element in module.named_children() if _linears(element)]
    return chains


def observe_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """Run the net once and note how its blocks are called; blocks that are not called are absent."""
    seen: dict[str, BlockCall] = {}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[name] = BlockCall(args, kwargs)

    with before_forward({name: net.get_submodule(name) for name in blocks}, note), torch.no_grad():
        net(**inputs)
    return seen


def _linears(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Linear) for part in module.modules())


def _qualifies(container: nn.Module) -> bool:
    counts = [_linears(element) for element in container.children() if _linears(element)]
    return bool(counts) and min(counts) >= FEWEST_LINEARS


def _is_innermost(container: nn.Module) -> bool:
    if not _qualifies(container):
        return False
    inner = (part for part in container.modules() if part is not container and isinstance(part, CONTAINERS))
    return not any(_qualifies(part) for part in inner)
