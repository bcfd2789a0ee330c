"""Find the products in a block's graph, with their fusable epilogues, and the weights of joined products."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sparsefront_kernels import FORMATS, SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered_2_4.format import Gathered24Format
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.networks import layer_weight

aten = torch.ops.aten
TOKEN_WISE = (
    aten.linear.default,
    aten.layer_norm.default,
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.gelu.default,
    aten.relu.default,
)
STREAM_NORMS: dict[Any, str] = {aten.layer_norm.default: "layer_norm", aten.rms_norm.default: "rms_norm"}
GATES = (aten.silu.default, aten.gelu.default, aten.relu.default, aten.sigmoid.default, aten.tanh.default)


@dataclass(frozen=True)
class ProductSite:
    """act(scale * (x · Wᵀ + bias)) + residual, as nodes of a graph.

    Args:
        linears: nodes of the Linears; several if they read the same x and are joined to one product.
        layers: their names in the block.
        rows: number of outputs of each.
        x: their input.
        activation: a name of the kernels' `ACTIVATIONS`.
        residual: node that is added, or None.
        norm: of the residual stream, that reads the sum with the residual, if there is no activation; or None.
        out: last node that the product replaces; for joined Linears one of them, each of which keeps its own users.
        scale: name of the parameter [N] that multiplies the outputs, as in LayerScale, and is folded into the weight; or None.
    """

    linears: tuple[fx.Node, ...]
    layers: tuple[str, ...]
    rows: tuple[int, ...]
    x: fx.Node
    activation: str
    residual: fx.Node | None
    out: fx.Node
    norm: fx.Node | None = None
    scale: str | None = None

    @property
    def users(self) -> list[fx.Node]:
        """Nodes that read the result."""
        ends = self.linears if len(self.linears) > 1 else (self.out,)
        return [user for end in ends for user in end.users]


def find_sites(graph: fx.Graph, block: nn.Module, parts: FusionParts = ALL_PARTS) -> list[ProductSite]:
    """Every Linear call of the graph with its fusable epilogue, in graph order.

    A Linear that is called twice gives two sites with the same layer.
    """
    sites = []
    taken: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        layer = _layer_of(node, block)
        if layer is not None:
            rows = layer_weight(block.get_submodule(layer)).shape[0]
            scaled = _only_user(node)
            scale = None if scaled is None else _scale(scaled, node, rows)
            if scaled is None or scale is None:
                sites.append(_with_epilogue(node, layer, rows, taken, parts))
                continue
            site = _with_epilogue(scaled, layer, rows, taken, parts)
            sites.append(replace(site, linears=(node,), x=node_argument(node, 0), scale=scale))
    return sites


def merge_candidates(sites: Iterable[ProductSite]) -> list[list[ProductSite]]:
    """Groups of sites that may be joined to one product: those that read the same node and have no epilogue, such as query, key
    and value, or the two Linears of a gated activation.
    """
    groups: dict[fx.Node, list[ProductSite]] = {}
    for site in sites:
        alone = site.activation == "none" and site.residual is None and site.scale is None
        if alone and (not is_stream(site.users) or is_gated(site.linears[0])):
            groups.setdefault(site.x, []).append(site)
    return [group for group in groups.values() if len(group) > 1]


def merge_sites(group: list[ProductSite]) -> ProductSite:
    """Join a group of `merge_candidates` to one product."""
    linears = tuple(site.linears[0] for site in group)
    layers = tuple(site.layers[0] for site in group)
    rows = tuple(site.rows[0] for site in group)
    return ProductSite(linears, layers, rows, group[0].x, "none", None, linears[0])


def find_pairs(sites: Iterable[ProductSite]) -> list[tuple[ProductSite, ProductSite]]:
    """Pairs (up, down) where down is the only reader of up's output."""
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
    """Whether all users are token-wise: products, norms, sums and the block's output; not attention with its views."""
    return all(user.op == "output" or _reads_by_token(user) for user in users)


def _reads_by_token(user: fx.Node) -> bool:
    scales = user.target is aten.mul.Tensor and not all(isinstance(factor, fx.Node) for factor in user.args)
    return user.target in TOKEN_WISE and (not scales or is_stream(user.users))  # queries may be scaled before attention


def is_feature_major(node: fx.Node) -> bool:
    """Whether this node's output is feature-major if the residual stream is."""
    if node.op == "placeholder":
        return True
    if node.target in (aten.layer_norm.default, aten.linear.default):
        return is_stream(node.users)
    if node.target in TOKEN_WISE:
        return isinstance(node.args[0], fx.Node) and is_feature_major(node.args[0])
    return False


def is_gated(linear: fx.Node) -> bool:
    """Whether a Linear is part of a gated activation such as SwiGLU: act(linear(x)) * linear(x)."""
    user = _only_user(linear)
    if user is not None and user.target is not aten.mul.Tensor and user.target in GATES:
        user = _only_user(user)
    if user is None or user.target is not aten.mul.Tensor:
        return False
    factors = [_before_gate(factor) for factor in user.args]
    return None not in factors and linear in factors and factors[0] is not factors[1] and _same_x(*factors)


def _before_gate(factor: Any) -> fx.Node | None:
    """The Linear of a factor linear(x) or act(linear(x)), else None."""
    if isinstance(factor, fx.Node) and factor.target in GATES:
        factor = factor.args[0]
    return factor if isinstance(factor, fx.Node) and factor.target is aten.linear.default else None


def _same_x(one: fx.Node | None, other: fx.Node | None) -> bool:
    return one is not None and other is not None and one.args[0] is other.args[0]


def _with_epilogue(node: fx.Node, layer: str, rows: int, taken: set[fx.Node], parts: FusionParts) -> ProductSite:
    out, activation, residual = node, "none", None
    fuses = parts.activation and not (parts.joined and is_gated(node))
    if fuses and (user := _only_user(out)) is not None and (fused_activation := _activation(user)) is not None:
        out, activation = user, fused_activation
    user = _only_user(out) if parts.residual else None
    if user is not None and user not in taken and user.target is aten.add.Tensor and not user.kwargs:
        other = [part for part in user.args if part is not out]
        if len(other) == 1 and isinstance(other[0], fx.Node) and _same_shape(other[0], out):
            out, residual = user, other[0]
            taken.add(user)  # if two products are summed, only one fuses the sum
    norm = (
        next((user for user in out.users if is_stream_norm(user)), None)
        if parts.residual_in_norm and residual is not None and activation == "none"
        else None
    )
    return ProductSite((node,), (layer,), (rows,), node_argument(node, 0), activation, residual, out, norm)


def is_stream_norm(node: fx.Node) -> bool:
    """Whether a node is a norm over features with token-wise readers, before or after products are placed."""
    return (
        node.target in STREAM_NORMS
        and (node.target is aten.layer_norm.default or len(node.args) > 3 and node.args[3] is not None)  # it has an eps
        and isinstance(shape := node.args[1], Sequence)
        and len(shape) == 1
        and is_stream([user for user in node.users if user.op != "call_module"])
    )


def _layer_of(node: fx.Node, block: nn.Module) -> str | None:
    """The name of the Linear whose weight this node reads, or None."""
    weight = node_argument(node, 1)
    if weight.op != "get_attr" or not read_name(weight).endswith(".weight"):
        return None
    name = read_name(weight).removesuffix(".weight")
    return name if isinstance(block.get_submodule(name), nn.Linear) else None


def node_argument(node: fx.Node, place: int) -> fx.Node:
    """An argument of a call that must be a node."""
    argument = node.args[place]
    assert isinstance(argument, fx.Node)
    return argument


def read_name(node: fx.Node) -> str:
    """The name of the tensor that a get_attr node reads."""
    assert isinstance(node.target, str)
    return node.target


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _scale(node: fx.Node, product: fx.Node, rows: int) -> str | None:
    """The parameter [rows] by which a node multiplies a product for the residual stream, or None."""
    if node.target is not aten.mul.Tensor or node.kwargs or not is_stream(node.users):
        return None
    others = [part for part in node.args if part is not product]
    if len(others) != 1 or not isinstance(others[0], fx.Node) or others[0].op != "get_attr":
        return None
    value = others[0].meta.get("val")
    return read_name(others[0]) if isinstance(value, torch.Tensor) and tuple(value.shape) == (rows,) else None


def _activation(node: fx.Node) -> str | None:
    if node.target is aten.relu.default:
        return "relu"
    if node.target is aten.gelu.default:
        return {"none": "gelu", "tanh": "gelu_tanh"}[str(node.kwargs.get("approximate", "none"))]
    return None


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    shapes = [node.meta["val"].shape for node in (one, other) if isinstance(node.meta.get("val"), torch.Tensor)]
    return len(shapes) == 2 and str(shapes[0]) == str(shapes[1])  # compare symbolic sizes by name, which adds no guard


# The weight of a fused product: one Linear's masked weight, or several concatenated along N.

REBUILDABLE = ("gathered", "gathered_2_4", "blocked", "blocked_2_4", "n_m", "csr", "ell", "semi_structured")
"""Families whose formats can be rebuilt from a weight, a mask and their `meta()`."""


@dataclass(frozen=True, eq=False)
class ProductWeight:
    """W [N, K] and bias [N] of a product.

    Args:
        layers: names of the Linears, in order along N.
        rows: number of outputs of each.
        weight: [N, K], exact zeros where pruned.
        bias: [N] or None; float32 where constants of pruned features are folded in.
        mask: bool [N, K], True = keep; None where no layer is pruned.
        stored: in the pattern's canonical format; None where no layer is pruned.
    """

    layers: tuple[str, ...]
    rows: tuple[int, ...]
    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None = None
    stored: SparseFormat | None = None

    @classmethod
    def of(cls, name: str, layer: nn.Linear, stored: SparseFormat | None, mask: Tensor | None) -> "ProductWeight":
        """The weight of one Linear, shared with it; `stored` and `mask` as in `fuse_blocks`."""
        weight = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach()
        if stored is None or mask is None or stored.family == "dense":
            return cls((name,), (weight.shape[0],), weight, bias)
        stored = stored.to(device=weight.device, dtype=weight.dtype)
        return cls((name,), (weight.shape[0],), weight, bias, mask.to(weight.device), stored)

    def scale(self, scale: Tensor) -> "ProductWeight":
        """The weight with outputs multiplied by `scale` [N].

        Raises:
            ValueError: a format that cannot be scaled.
        """
        scale = scale.detach().float()
        weight = (self.weight.float() * scale[:, None]).to(self.weight.dtype)
        bias = None if self.bias is None else (self.bias.float() * scale).to(self.bias.dtype)
        stored = None if self.stored is None else self.stored.scaled(scale)
        return replace(self, weight=weight, bias=bias, stored=stored)

    @property
    def family(self) -> str:
        return "dense" if self.stored is None else self.stored.family

    @property
    def density(self) -> float:
        """Fraction of weights that the masks keep."""
        return 1.0 if self.mask is None else self.mask.double().mean().item()


def join(parts: Sequence[ProductWeight]) -> ProductWeight | None:
    """Concatenate Linears that read the same X to one product; None where one format cannot store them.

    Tiles of gathered outputs do not mix layers: a partial last tile is filled with pruned outputs of its own layer.
    """
    weight = torch.cat([part.weight for part in parts])
    layers = tuple(name for part in parts for name in part.layers)
    rows = tuple(count for part in parts for count in part.rows)
    bias = None
    if any(part.bias is not None for part in parts):
        zeros = [part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in parts]
        bias = torch.cat(zeros)
    if all(part.stored is None for part in parts):
        return ProductWeight(layers, rows, weight, bias)
    like = next(part.stored for part in parts if part.stored is not None)
    if any(part.stored is not None and describe_format(part.stored) != describe_format(like) for part in parts):
        return None
    every = (torch.ones_like(part.weight, dtype=torch.bool) if part.mask is None else part.mask for part in parts)
    mask = torch.cat(list(every))
    stored: SparseFormat
    try:
        if isinstance(like, GatheredFormat):
            stored = _join_tiles(parts, weight, mask, like)
        else:
            _check_whole_tiles(parts, like)
            stored = rebuild(like, weight, mask)
    except ValueError:  # the format cannot store the mask
        return None
    return ProductWeight(layers, rows, weight, bias, mask, stored)


def rebuild(like: SparseFormat, weight: Tensor, mask: Tensor, **orders: Tensor) -> SparseFormat:
    """Store another weight in the format of `like`, with its parameters.

    Raises:
        ValueError: the mask has another structure, or the format cannot be rebuilt.
    """
    if like.family not in REBUILDABLE or getattr(like, "input_order", None) is not None:
        raise ValueError(f"{like.family}: not made again")
    parameters = {name: value for name, value in like.meta().items() if name != "shape"}
    return FORMATS[like.family].from_dense(weight, mask, **parameters, **orders)


def store_tiles(like: GatheredFormat, weight: Tensor, mask: Tensor, order: Tensor) -> GatheredFormat:
    """Store a weight in tiles of outputs in this order, int64 [N]; pruned outputs may fill a tile."""
    return GatheredFormat.from_dense(
        weight, mask, tile=like.tile, drop_empty_outputs=False, output_order=order, fill=True
    )


def outputs_in_tiles(stored: GatheredFormat) -> Tensor:
    """The outputs of non-empty tiles, int64, in tile order."""
    counts = stored.tile_offsets.diff()
    tile_of = torch.arange(stored.output_index.numel(), device=stored.device) // stored.tile
    return stored.output_index.long()[(counts > 0)[tile_of]]


def _join_tiles(parts: Sequence[ProductWeight], weight: Tensor, mask: Tensor, like: GatheredFormat) -> GatheredFormat:
    # a layer that cannot fill its last tile comes last
    placed = sorted(zip(parts, _starts(parts), strict=True), key=lambda pair: len(pair[0].weight) % like.tile != 0)
    order = []
    for place, (part, first) in enumerate(placed):
        count = len(part.weight)
        assert part.stored is None or isinstance(part.stored, GatheredFormat)  # all formats are equal: see `join`
        inside = torch.arange(count, device=weight.device) if part.stored is None else outputs_in_tiles(part.stored)
        missing = -inside.numel() % like.tile
        others = complement(inside, count)
        if missing > others.numel() and place < len(placed) - 1:
            raise ValueError("gathered: a narrow tile would mix layers")
        order.append(torch.cat([inside, others[:missing]]) + first)
    tiles = torch.cat(order)
    return store_tiles(like, weight, mask, torch.cat([tiles, complement(tiles, len(weight))]))


def _check_whole_tiles(parts: Sequence[ProductWeight], like: SparseFormat) -> None:
    """Raise ValueError where 2:4 groups in tiles would shift: tiles are formed from non-empty outputs in order."""
    if not isinstance(like, Gathered24Format):
        return
    for part in parts[:-1]:
        outputs = len(part.weight) if part.mask is None else int(part.mask.any(dim=1).sum())
        if outputs % like.tile:
            raise ValueError("gathered_2_4: a narrow tile would mix layers")


def _starts(parts: Sequence[ProductWeight]) -> list[int]:
    counts = [len(part.weight) for part in parts]
    return [sum(counts[:place]) for place in range(len(parts))]


def complement(index: Tensor, count: int) -> Tensor:
    """The indices below `count` that are not in `index`, ascending."""
    absent = torch.ones(count, dtype=torch.bool, device=index.device)
    absent[index] = False
    return absent.nonzero().flatten()


def describe_format(stored: SparseFormat) -> Mapping[str, object]:
    """Family and parameters of a format."""
    return {"family": stored.family} | {name: value for name, value in stored.meta().items() if name != "shape"}
