"""A captured graph with products and norms in place of their operators."""

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from sparsefront.inference.fusion.fused_norm import FusedNorm, FusedResidualNorm
from sparsefront.inference.fusion.layout import activation_in_layout
from sparsefront.inference.fusion.sites import ProductSite, is_stream_norm

aten = torch.ops.aten


def copied(graph: fx.Graph) -> fx.Graph:
    """A graph of its own, to be rewritten."""
    other = fx.Graph()
    outputs = other.graph_copy(graph, {})
    other.output(outputs)
    return other


def remove_unread(graph: fx.Graph) -> None:
    """Erase what is not read; captured graphs change no tensor in place."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)


def place_products(graph: fx.Graph, products: Mapping[str, ProductSite]) -> None:
    """Call products instead of Linears and their epilogues.

    Args:
        products: name of the module -> its site in this graph, without a residual where the norm behind it adds it.
    """
    now: dict[fx.Node, fx.Node] = {}  # what was replaced -> by what, since sites name nodes of the graph as it was
    for name, site in products.items():
        before = _first(graph, site.linears) if len(site.linears) > 1 else site.out
        with graph.inserting_before(before):
            operands = (site.x,) if site.residual is None else (site.x, site.residual)
            called = graph.call_module(name, tuple(now.get(node, node) for node in operands))
            called.meta = dict(site.out.meta)
            now |= _slices(graph, called, site) if len(site.linears) > 1 else {site.out: called}
    for old, new in now.items():
        old.replace_all_uses_with(new)
    remove_unread(graph)


def _slices(graph: fx.Graph, called: fx.Node, site: ProductSite) -> dict[fx.Node, fx.Node]:
    """Each Linear of a joined product -> its outputs."""
    parts, start = {}, 0
    for linear, count in zip(site.linears, site.rows, strict=True):
        parts[linear] = graph.call_function(aten.slice.Tensor, (called, -1, start, start + count))
        parts[linear].meta = dict(linear.meta)
        start += count
    return parts


def place_norms(
    graph: fx.Graph,
    parameters: Mapping[str, torch.Tensor],
    added: Mapping[fx.Node, tuple[int, torch.Tensor | None]],
) -> dict[str, FusedNorm]:
    """Call feature-major norms where a norm stands in the residual stream.

    Args:
        parameters: of the block, by name.
        added: norm that adds a residual to a product -> which argument of the sum is the residual, and the product's bias.
    Returns:
        name of the module -> norm.
    """
    norms: dict[str, FusedNorm] = {}
    for node in graph.find_nodes(op="call_function", target=aten.layer_norm.default):
        if not is_stream_norm(node):
            continue
        weight, bias = (_parameter(parameters, node, place) for place in (2, 3))
        name = f"norm_{len(norms)}"
        eps = node.args[4] if len(node.args) > 4 else 1e-5
        if node in added:
            place, x_bias = added[node]
            keep_sums = len(node.args[0].users) > 1
            norms[name] = FusedResidualNorm(weight, bias, eps, x_bias=x_bias, keep_sums=keep_sums)
            _place_with_residual(graph, name, node, place)
            continue
        norms[name] = FusedNorm(weight, bias, eps)
        with graph.inserting_before(node):
            called = graph.call_module(name, (node.args[0],))
            called.meta = dict(node.meta)
        node.replace_all_uses_with(called)
    remove_unread(graph)
    return norms


def _place_with_residual(graph: fx.Graph, name: str, norm: fx.Node, place: int) -> None:
    """Call a norm instead of a sum and the norm of it; who reads the sum gets it from there.

    Args:
        place: of the residual among the two arguments of the sum.
    """
    total = norm.args[0]
    sums, residual = total.args[1 - place], total.args[place]
    with graph.inserting_after(total):
        called = graph.call_module(name, (sums, residual))
    with graph.inserting_after(called):
        normed = graph.call_function(operator.getitem, (called, 0))
        kept = graph.call_function(operator.getitem, (called, 1))
    normed.meta, kept.meta = dict(norm.meta), dict(total.meta)
    norm.replace_all_uses_with(normed)
    total.replace_all_uses_with(kept, delete_user_cb=lambda user: user is not norm)


def place_layouts(graph: fx.Graph, modules: Sequence[str], *, row_major_exit: bool) -> None:
    """Bring what enters the residual stream into feature-major layout, and what leaves it back where that is asked for."""
    for node in graph.find_nodes(op="placeholder"):
        readers = [user for user in node.users if user.op == "call_module" and user.target in modules]
        if not readers:
            continue
        with graph.inserting_after(node):
            entered = _in_layout(graph, node, feature_major=True)
        node.replace_all_uses_with(entered, delete_user_cb=lambda user, entered=entered: user is not entered)
    if row_major_exit:
        output = graph.output_node()
        with graph.inserting_before(output):
            output.args = fx.map_arg(output.args, lambda node: _leaving(graph, node))


def _leaving(graph: fx.Graph, node: fx.Node) -> fx.Node:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or not value.is_floating_point():
        return node
    return _in_layout(graph, node, feature_major=False)


def _in_layout(graph: fx.Graph, node: fx.Node, *, feature_major: bool) -> fx.Node:
    """One call that stays one call where the graph is read from a file, which traces it anew: it looks at strides."""
    called = graph.call_function(activation_in_layout, (node,), {"feature_major": feature_major})
    called.meta = {**node.meta, "is_wrapped": True}  # as fx.wrap
    return called


def _parameter(parameters: Mapping[str, torch.Tensor], node: fx.Node, place: int) -> torch.Tensor | None:
    source = node.args[place] if len(node.args) > place else None
    return None if source is None else parameters[source.target]


def _first(graph: fx.Graph, nodes: Sequence[fx.Node]) -> fx.Node:
    wanted = set(nodes)
    return next(node for node in graph.nodes if node in wanted)
