"""What follows a convolution and can go into it: ReLU, or the sum with a shortcut and then ReLU."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from sparsefront.measure.tracing import CannotTrace, traced

_SUMS = (operator.add, operator.iadd, torch.add)
_RELUS = (torch.relu, torch.nn.functional.relu)


@dataclass(frozen=True)
class Ending:
    """max(0, y), or max(0, y + shortcut).

    Args:
        relu: the node that computes it.
        shortcut: the node that is added; None where none is.
    """

    relu: fx.Node
    shortcut: fx.Node | None = None


def ending_of(node: fx.Node, modules: dict[str, nn.Module]) -> Ending | None:
    """The ending that alone reads a node, or None."""
    if len(node.users) != 1:
        return None
    (after,) = node.users
    if _is_relu(after, modules):
        return Ending(after)
    if not _calls(after, _SUMS) or after.kwargs or len(after.args) != 2 or len(after.users) != 1:
        return None
    first, second = after.args
    shortcut = second if first is node else first
    (relu,) = after.users
    if not isinstance(shortcut, fx.Node) or shortcut is node or not _is_relu(relu, modules):
        return None
    return Ending(relu, shortcut)


def adds_shortcut(net: nn.Module) -> dict[str, bool]:
    """Convolutions that ReLU follows -> whether a shortcut is added before it; BatchNorms, which are folded, may be between.

    Of two convolutions whose sum it is of, the first one takes it. Empty where the forward is no graph of calls.
    """
    try:
        nodes = traced(net).nodes
    except CannotTrace:
        return {}
    modules = dict(net.named_modules())
    found, taken = {}, set()
    for node in nodes:
        if node.op != "call_module" or not isinstance(modules[node.target], nn.Conv2d):
            continue
        last = node
        while len(last.users) == 1 and _is_norm(after := next(iter(last.users)), modules):
            last = after
        if (ending := ending_of(last, modules)) is not None and ending.relu not in taken:
            taken.add(ending.relu)
            found[node.target] = ending.shortcut is not None
    return found


def _is_norm(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and isinstance(modules[node.target], nn.BatchNorm2d | nn.Identity)


def _calls(node: fx.Node, functions: tuple[Any, ...]) -> bool:
    return node.op == "call_function" and node.target in functions


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[node.target], nn.ReLU)
    return _calls(node, _RELUS) or (node.op == "call_method" and node.target in ("relu", "relu_"))
