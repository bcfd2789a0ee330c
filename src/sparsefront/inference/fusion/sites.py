"""Where a block's graph multiplies by weights, and what belongs to each product: found by operators, not by names."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx, nn

from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts

aten = torch.ops.aten
TOKEN_WISE = (
    aten.linear.default,
    aten.layer_norm.default,
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.gelu.default,
    aten.relu.default,
)


@dataclass(frozen=True)
class ProductSite:
    """act(x · Wᵀ + bias) + residual, as nodes of a graph.

    Args:
        linears: nodes of the Linears; several where they read the same x and are made one product.
        layers: their names in the block.
        rows: outputs of each.
        x: what they read.
        activation: a name of the kernels' `ACTIVATIONS`.
        residual: node that is added, or None.
        norm: LayerNorm of the residual stream that reads the sum with the residual, where there is no activation; or None.
        out: last node that the product replaces; of several Linears the last of them, each of which keeps its own users.
    """

    linears: tuple[fx.Node, ...]
    layers: tuple[str, ...]
    rows: tuple[int, ...]
    x: fx.Node
    activation: str
    residual: fx.Node | None
    out: fx.Node
    norm: fx.Node | None = None

    @property
    def users(self) -> list[fx.Node]:
        """What reads the result."""
        ends = self.linears if len(self.linears) > 1 else (self.out,)
        return [user for end in ends for user in end.users]


def find_sites(graph: fx.Graph, block: nn.Module, parts: FusionParts = ALL_PARTS) -> list[ProductSite]:
    """Every Linear of the block that its graph calls, with the epilogue that may be fused; in the order of the graph.

    A Linear that is called twice is two sites of the same layer.
    """
    sites = []
    taken: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        layer = _layer_of(node, block)
        if layer is not None:
            sites.append(_with_epilogue(node, layer, block.get_submodule(layer).out_features, taken, parts))
    return sites


def merge_candidates(sites: Iterable[ProductSite]) -> list[list[ProductSite]]:
    """Groups of sites that may be one product: they read the same node and have no epilogue, as query, key and value."""
    groups: dict[fx.Node, list[ProductSite]] = {}
    for site in sites:
        if site.activation == "none" and site.residual is None and not is_stream(site.users):
            groups.setdefault(site.x, []).append(site)
    return [group for group in groups.values() if len(group) > 1]


def merged(group: list[ProductSite]) -> ProductSite:
    """The one product of such a group."""
    linears = tuple(site.linears[0] for site in group)
    layers = tuple(site.layers[0] for site in group)
    rows = tuple(site.rows[0] for site in group)
    return ProductSite(linears, layers, rows, group[0].x, "none", None, linears[0])


def hidden_pairs(sites: Iterable[ProductSite]) -> list[tuple[ProductSite, ProductSite]]:
    """(up, down): everything that up computes is read by down alone, features side by side."""
    sites = list(sites)
    readers = {site.x: site for site in sites if len(site.layers) == 1}
    return [
        (up, readers[up.out])
        for up in sites
        if len(up.layers) == 1
        and up.residual is None
        and up.out in readers
        and set(up.out.users) == {readers[up.out].linears[0]}
    ]


def is_stream(users: Iterable[fx.Node]) -> bool:
    """Whether all users read token by token: products, norms, sums and the block's output; not attention with its views."""
    return all(user.op == "output" or user.target in TOKEN_WISE for user in users)


def is_feature_major(node: fx.Node) -> bool:
    """Whether what this node computes is feature-major where the residual stream is."""
    if node.op == "placeholder":
        return True
    if node.target in (aten.layer_norm.default, aten.linear.default):
        return is_stream(node.users)
    if node.target in TOKEN_WISE:
        return isinstance(node.args[0], fx.Node) and is_feature_major(node.args[0])
    return False


def _with_epilogue(node: fx.Node, layer: str, rows: int, taken: set[fx.Node], parts: FusionParts) -> ProductSite:
    out, activation, residual = node, "none", None
    if parts.activation and (user := _only_user(out)) is not None and (found := _activation(user)) is not None:
        out, activation = user, found
    user = _only_user(out) if parts.residual else None
    if user is not None and user not in taken and user.target is aten.add.Tensor and not user.kwargs:
        other = [part for part in user.args if part is not out]
        if len(other) == 1 and isinstance(other[0], fx.Node) and _same_shape(other[0], out):
            out, residual = user, other[0]
            taken.add(user)  # of two products that are added up, one fuses the sum
    norm = _norm_of(out) if parts.residual_in_norm and residual is not None and activation == "none" else None
    return ProductSite((node,), (layer,), (rows,), node.args[0], activation, residual, out, norm)


def is_stream_norm(node: fx.Node) -> bool:
    """Whether it is a LayerNorm over features that is read token by token, before or after products have been placed."""
    return (
        node.target is aten.layer_norm.default
        and len(node.args[1]) == 1
        and is_stream([user for user in node.users if user.op != "call_module"])
    )


def _norm_of(total: fx.Node) -> fx.Node | None:
    return next((user for user in total.users if is_stream_norm(user)), None)


def _layer_of(node: fx.Node, block: nn.Module) -> str | None:
    """The name of the Linear whose weight this node reads, or None."""
    weight = node.args[1]
    if weight.op != "get_attr" or not weight.target.endswith(".weight"):
        return None
    name = weight.target.removesuffix(".weight")
    return name if isinstance(block.get_submodule(name), nn.Linear) else None


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _activation(node: fx.Node) -> str | None:
    if node.target is aten.relu.default:
        return "relu"
    if node.target is aten.gelu.default:
        return {"none": "gelu", "tanh": "gelu_tanh"}[node.kwargs.get("approximate", "none")]
    return None


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    shapes = [node.meta["val"].shape for node in (one, other) if isinstance(node.meta.get("val"), torch.Tensor)]
    return len(shapes) == 2 and str(shapes[0]) == str(shapes[1])  # symbolic sizes are compared by name, without a guard
