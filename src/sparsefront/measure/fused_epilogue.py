"""What follows a sparse convolution goes into it: ReLU, and the sum with a shortcut before it."""

import copy
from typing import Protocol, Self, runtime_checkable

from torch import Tensor, fx, nn

from sparsefront.forward_calls import first_argument
from sparsefront.measure.endings import ending_of
from sparsefront.measure.tracing import traced


class NothingToFuse(Exception):
    """A network without a convolution that takes what follows it; the message says so."""


@runtime_checkable
class TakesEpilogue(Protocol):
    """A convolution that can give max(0, y + residual), or max(0, y)."""

    def with_relu(self) -> Self | None:
        """A copy that ends with ReLU, whose forward takes a residual as its second argument; None where it gains nothing."""

    def __call__(self, input: Tensor, residual: Tensor | None = None) -> Tensor: ...


def fuse_epilogues(net: nn.Module) -> nn.Module:
    """A copy, as a graph, in which sparse convolutions end with the ReLU that follows them.

    Args:
        net: in eval mode; left as it is.
    Raises:
        NothingToFuse, CannotTrace: with the reason.
    """
    if not any(isinstance(module, TakesEpilogue) for module in net.modules()):
        raise NothingToFuse("the network has no sparse convolution that takes what follows it")
    net = copy.deepcopy(net)
    graph = traced(net)
    modules = dict(net.named_modules())
    _remove_identities(graph, modules)
    targets = [node.target for node in graph.nodes if node.op == "call_module"]
    fused = 0
    for node in list(graph.nodes):
        if node.op != "call_module" or targets.count(node.target) != 1 or len(node.users) != 1:
            continue
        if isinstance(module := modules[node.target], TakesEpilogue) and _fuse(graph, node, module, modules):
            fused += 1
    if not fused:
        raise NothingToFuse("no sparse convolution is followed by ReLU")
    graph.lint()
    return fx.GraphModule(modules[""], graph).eval()


def _fuse(graph: fx.Graph, node: fx.Node, convolution: TakesEpilogue, modules: dict[str, nn.Module]) -> bool:
    """Whether the convolution of a node took the ReLU behind it, with the sum between, if there is one."""
    (after,) = node.users
    ending = ending_of(node, modules)
    if ending is None or (ended := convolution.with_relu()) is None:
        return False
    modules[""].set_submodule(node.target, ended, strict=True)
    with graph.inserting_before(ending.relu):  # where the shortcut too is known
        x = first_argument(node.args, node.kwargs)
        arguments = (x,) if ending.shortcut is None else (x, ending.shortcut)
        made = graph.call_module(node.target, arguments)
    ending.relu.replace_all_uses_with(made)
    for gone in (ending.relu, after, node):
        if not gone.users and gone in graph.nodes:
            graph.erase_node(gone)
    return True


def _remove_identities(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    for node in list(graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], nn.Identity):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
