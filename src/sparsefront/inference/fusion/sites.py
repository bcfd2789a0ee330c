"""Where a block's graph multiplies by weights: products, constant inputs, hidden features without a weight."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sparsefront_kernels import FORMATS, SparseFormat
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.common.epilogue import ACTIVATIONS
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


@dataclass(frozen=True)
class ProductSite:
    """act(scale * (x · Wᵀ + bias)) + residual, as nodes of a graph.

    Args:
        linears: nodes of the Linears; several where they read the same x and are made one product.
        layers: their names in the block.
        rows: outputs of each.
        x: what they read.
        activation: a name of the kernels' `ACTIVATIONS`.
        residual: node that is added, or None.
        norm: LayerNorm of the residual stream that reads the sum with the residual, where there is no activation; or None.
        out: last node that the product replaces; of several Linears the last of them, each of which keeps its own users.
        scale: name of the parameter [N] that multiplies the outputs, as LayerScale does, and so goes into the weight; or None.
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
    return ProductSite((node,), (layer,), (rows,), node_argument(node, 0), activation, residual, out, norm)


def is_stream_norm(node: fx.Node) -> bool:
    """Whether it is a LayerNorm over features that is read token by token, before or after products have been placed."""
    return (
        node.target is aten.layer_norm.default
        and isinstance(shape := node.args[1], Sequence)
        and len(shape) == 1
        and is_stream([user for user in node.users if user.op != "call_module"])
    )


def _norm_of(total: fx.Node) -> fx.Node | None:
    return next((user for user in total.users if is_stream_norm(user)), None)


def _layer_of(node: fx.Node, block: nn.Module) -> str | None:
    """The name of the Linear whose weight this node reads, or None."""
    weight = node_argument(node, 1)
    if weight.op != "get_attr" or not read_name(weight).endswith(".weight"):
        return None
    name = read_name(weight).removesuffix(".weight")
    return name if isinstance(block.get_submodule(name), nn.Linear) else None


def node_argument(node: fx.Node, place: int) -> fx.Node:
    """An argument of a call that is the result of another node."""
    argument = node.args[place]
    assert isinstance(argument, fx.Node)
    return argument


def read_name(node: fx.Node) -> str:
    """The name of the tensor that a node reads."""
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
    return len(shapes) == 2 and str(shapes[0]) == str(shapes[1])  # symbolic sizes are compared by name, without a guard


# What a fused product multiplies by: one Linear's masked weight, or several below each other.

REMADE = ("gathered", "gathered_2_4", "blocked", "blocked_2_4", "n_m", "csr", "ell", "semi_structured")
"""Families that can be made again from a weight and a mask with what their formats say of themselves."""


@dataclass(frozen=True, eq=False)
class ProductWeight:
    """W [N, K] and bias [N] of a product.

    Args:
        layers: names of the Linears, below each other.
        rows: outputs of each.
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
        """One Linear, which stays as it is, its weight shared; `stored` and `mask` as for `fuse_blocks`."""
        weight = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach()
        if stored is None or mask is None or stored.family == "dense":
            return cls((name,), (weight.shape[0],), weight, bias)
        stored = stored.to(device=weight.device, dtype=weight.dtype)
        return cls((name,), (weight.shape[0],), weight, bias, mask.to(weight.device), stored)

    def scaled(self, scale: Tensor) -> "ProductWeight":
        """With each output multiplied by its own number.

        Args:
            scale: [N].
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
    """Several Linears that read the same X as one product, or None where one format cannot store them.

    Tiles of gathered outputs stay whole: a layer whose last tile is narrow fills it with outputs of its own that are pruned.
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
    if any(part.stored is not None and stored_parameters(part.stored) != stored_parameters(like) for part in parts):
        return None
    every = (torch.ones_like(part.weight, dtype=torch.bool) if part.mask is None else part.mask for part in parts)
    mask = torch.cat(list(every))
    stored: SparseFormat
    try:
        if isinstance(like, GatheredFormat):
            stored = _joined_tiles(parts, weight, mask, like)
        else:
            _check_whole_tiles(parts, like)
            stored = remade(like, weight, mask)
    except ValueError:  # how a format says that it cannot store a mask
        return None
    return ProductWeight(layers, rows, weight, bias, mask, stored)


def remade(like: SparseFormat, weight: Tensor, mask: Tensor, **orders: Tensor) -> SparseFormat:
    """Another weight in the format of `like`, with its parameters.

    Raises:
        ValueError: the mask does not have the structure, or the format cannot be made again.
    """
    if like.family not in REMADE or getattr(like, "input_order", None) is not None:
        raise ValueError(f"{like.family}: not made again")
    parameters = {name: value for name, value in like.meta().items() if name != "shape"}
    return FORMATS[like.family].from_dense(weight, mask, **parameters, **orders)


def tiled(like: GatheredFormat, weight: Tensor, mask: Tensor, order: Tensor) -> GatheredFormat:
    """A weight in tiles of the outputs in this order, int64 [N]; outputs that are pruned may fill a tile."""
    return GatheredFormat.from_dense(
        weight, mask, tile=like.tile, drop_empty_outputs=False, output_order=order, fill=True
    )


def outputs_in_tiles(stored: GatheredFormat) -> Tensor:
    """The outputs of the tiles that keep anything, int64, in the order of the tiles."""
    counts = stored.tile_offsets.diff()
    tile_of = torch.arange(stored.output_index.numel(), device=stored.device) // stored.tile
    return stored.output_index.long()[(counts > 0)[tile_of]]


def _joined_tiles(parts: Sequence[ProductWeight], weight: Tensor, mask: Tensor, like: GatheredFormat) -> GatheredFormat:
    # a layer that cannot fill its last tile comes last
    placed = sorted(zip(parts, _starts(parts), strict=True), key=lambda pair: len(pair[0].weight) % like.tile != 0)
    order = []
    for place, (part, first) in enumerate(placed):
        count = len(part.weight)
        assert part.stored is None or isinstance(part.stored, GatheredFormat)  # alike: see `join`
        inside = torch.arange(count, device=weight.device) if part.stored is None else outputs_in_tiles(part.stored)
        missing = -inside.numel() % like.tile
        others = _others(inside, count)
        if missing > others.numel() and place < len(placed) - 1:
            raise ValueError("gathered: a narrow tile would mix layers")
        order.append(torch.cat([inside, others[:missing]]) + first)
    tiles = torch.cat(order)
    return tiled(like, weight, mask, torch.cat([tiles, _others(tiles, len(weight))]))


def _check_whole_tiles(parts: Sequence[ProductWeight], like: SparseFormat) -> None:
    """Raise ValueError where 2:4 inside tiles would shift: tiles are formed of outputs that keep anything, in their order."""
    if not isinstance(like, Gathered24Format):
        return
    for part in parts[:-1]:
        outputs = len(part.weight) if part.mask is None else int(part.mask.any(dim=1).sum())
        if outputs % like.tile:
            raise ValueError("gathered_2_4: a narrow tile would mix layers")


def _starts(parts: Sequence[ProductWeight]) -> list[int]:
    counts = [len(part.weight) for part in parts]
    return [sum(counts[:place]) for place in range(len(parts))]


def _others(index: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not in the index, ascending."""
    absent = torch.ones(count, dtype=torch.bool, device=index.device)
    absent[index] = False
    return absent.nonzero().flatten()


def stored_parameters(stored: SparseFormat) -> Mapping[str, object]:
    """Family, and what the format was made with."""
    return {"family": stored.family} | {name: value for name, value in stored.meta().items() if name != "shape"}


# Inputs of a product that are the same for every token, because the value projection before attention has no weights
# for them.
#
# Attention mixes the values of tokens with weights that sum to one. An output of the value projection that pruning
# left without weights is its bias for every token, so it is still that bias behind attention, wherever the feature
# then stands.

TOLERANCE = 1e-4
SIZES = (2, 3, 5, 7, 11)  # for the free sizes of a graph, in the order in which they appear


def value_projection(
    reader: ProductSite, sites: Iterable[ProductSite], kept: Mapping[str, Tensor]
) -> ProductSite | None:
    """The Linear whose features reach the reader unmixed and averaged over tokens, or None.

    Found by running what lies between on small random tensors: constant features have to arrive as they are, in order, and
    noise in some features must not reach others.

    Args:
        reader: a product behind attention.
        sites: Linears of the block, each its own site.
        kept: parameters of the block that are no Linear's, by name.
    """
    if len(reader.layers) != 1 or is_feature_major(reader.x):
        return None
    before = _linears_before(reader.x)
    for site in sites:
        linear = site.linears[0]
        if linear not in before or site.out is not linear:
            continue
        try:
            if _passes_constants(reader.x, linear, before, kept):
                return site
        except Exception:  # whatever cannot be run on small tensors is not known to pass constants
            continue
    return None


def _passes_constants(end: fx.Node, value: fx.Node, linears: set[fx.Node], kept: Mapping[str, Tensor]) -> bool:
    generator = torch.Generator().manual_seed(0)
    sizes: dict[str, int] = {}
    known = {
        node: torch.randn(_shape(node, sizes), generator=generator)
        for node in sorted(linears, key=lambda node: node.name)
    }
    features = known[value].shape[-1]
    known[value] = torch.arange(1.0, features + 1).expand(known[value].shape)
    constant = torch.arange(1.0, features + 1)
    arrived = _run(end, dict(known), sizes, kept)
    if arrived.shape[-1] != features or not torch.allclose(arrived, constant.expand(arrived.shape), rtol=TOLERANCE):
        return False
    noisy = torch.rand(features, generator=generator) < 0.5
    known[value] = torch.where(noisy, torch.randn(known[value].shape, generator=generator), known[value])
    arrived = _run(end, dict(known), sizes, kept)[..., ~noisy]
    return torch.allclose(arrived, constant[~noisy].expand(arrived.shape), rtol=TOLERANCE)


def _run(node: fx.Node, known: dict[fx.Node, Any], sizes: dict[str, int], kept: Mapping[str, Tensor]) -> Any:
    """What the node computes, from the results of those that are known."""
    if node not in known:
        if node.op == "placeholder":
            value = node.meta["val"]
            known[node] = torch.ones(_shape(node, sizes), dtype=value.dtype)
            if value.is_floating_point():
                known[node].zero_()  # an additive mask that hides nothing; a mask of bools shows everything
        elif node.op == "get_attr":
            known[node] = kept[read_name(node)].detach().float().cpu()
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda part: _run(part, known, sizes, kept))
            assert callable(node.target)
            known[node] = node.target(*args, **kwargs)
    return known[node]


def _shape(node: fx.Node, sizes: dict[str, int]) -> tuple[int, ...]:
    """The node's shape with a number for each free size."""
    shape = []
    for size in node.meta["val"].shape:
        name = str(size)
        if not name.isdigit():
            sizes.setdefault(name, SIZES[len(sizes)])
        shape.append(int(name) if name.isdigit() else sizes[name])
    return tuple(shape)


def _linears_before(node: fx.Node) -> set[fx.Node]:
    """The Linears nearest before a node."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.target is torch.ops.aten.linear.default:
            found.add(current)
        else:
            pending.extend(current.all_input_nodes)
    return found


# Hidden features that pruning left without a weight vanish between two products.

WORTH_IT = (
    1 / 8
)  # of the hidden features, that vanish: layers of one network then differ in shape, and each is tuned and timed anew
LISTED = (
    "gathered",
    "gathered_2_4",
    "blocked",
    "blocked_2_4",
)  # families with lists of inputs or blocks, which may lose some
ROUNDING = 16  # hidden features are kept in multiples of it: what a dense product needs for aligned rows


def compacted(up: ProductWeight, down: ProductWeight, activation: str) -> tuple[ProductWeight, ProductWeight] | None:
    """Both products without the hidden features that up has no weights for, or None where that changes little.

    Such a feature is the constant act(bias) for every row. Down multiplies it by a fixed weight, which goes into down's bias:
    b'[n] = b[n] + sum over pruned j of W[n, j] act(bias[j]), in float32.
    """
    if up.mask is None:
        return None
    unit = math.lcm(_block(up, 0), _block(down, 1))
    read = _in_units(up.mask.any(1), unit)
    kept = _with_rounding(read, unit)
    if (~kept).sum() < WORTH_IT * kept.numel():
        return None
    try:
        smaller_up, smaller_down = _rows(up, kept), _columns(down, kept, read)
    except ValueError:  # a format whose groups would be cut
        return None
    return smaller_up, replace(smaller_down, bias=folded_bias(down, _constants(up, activation), ~read))


def without_constants(value: ProductWeight, reader: ProductWeight) -> tuple[ProductWeight, int] | None:
    """The reader without the inputs that value, before attention, has no weights for, and their number.

    None where nothing changes.

    Their features stay in the tensor between, since heads have equal widths; the reader's lists of inputs lose them.
    """
    if value.mask is None or reader.mask is None or reader.family not in LISTED:
        return None
    read = _in_units(value.mask.any(1), _block(reader, 1))
    if not (reader.mask & ~read).any():
        return None
    try:
        lighter = _columns(reader, torch.ones_like(read), read)
    except ValueError:
        return None
    return replace(lighter, bias=folded_bias(reader, _constants(value, "none"), ~read)), int((~read).sum())


def folded_bias(down: ProductWeight, constants: Tensor, pruned: Tensor) -> Tensor:
    """down's bias plus what the pruned inputs, constant for every row, add to it: float32 [N] (or wider).

    Args:
        constants: [K], the value of each input; only those of pruned ones are read.
        pruned: bool [K].
    """
    wide = torch.promote_types(torch.float32, down.weight.dtype)
    added = down.weight[:, pruned].to(wide) @ constants[pruned].to(wide)
    return added if down.bias is None else added + down.bias.to(wide)


def _constants(up: ProductWeight, activation: str) -> Tensor:
    wide = torch.promote_types(torch.float32, up.weight.dtype)
    bias = up.weight.new_zeros(len(up.weight), dtype=wide) if up.bias is None else up.bias.to(wide)
    return ACTIVATIONS[activation](bias)


def _block(weight: ProductWeight, side: int) -> int:
    """Outputs (side 0) or inputs (side 1) of a block where the weight is stored in blocks, which must not be cut; else 1."""
    return weight.stored.block[side] if isinstance(weight.stored, BlockedFormat | Blocked24Format) else 1


def _in_units(alive: Tensor, unit: int) -> Tensor:
    """The features of every unit in which one is alive."""
    if len(alive) % unit:
        return torch.ones_like(alive)
    return alive.view(-1, unit).any(1).repeat_interleave(unit)


def _with_rounding(read: Tensor, unit: int) -> Tensor:
    """The features that are read, and as many units of the others as make a multiple of ROUNDING, and at least one."""
    kept = read.clone()
    while not kept.all() and (not kept.any() or int(kept.sum()) % ROUNDING):
        first = int((~kept).nonzero()[0]) // unit * unit
        kept[first : first + unit] = True
    return kept


def _rows(up: ProductWeight, kept: Tensor) -> ProductWeight:
    assert up.mask is not None and up.stored is not None  # of a product that is pruned
    weight, mask = up.weight[kept], up.mask[kept]
    bias = None if up.bias is None else up.bias[kept]
    stored = _stored_rows(up.stored, weight, mask, kept)
    return replace(up, rows=(len(weight),), weight=weight, bias=bias, mask=mask, stored=stored)


def _stored_rows(stored: SparseFormat, weight: Tensor, mask: Tensor, kept: Tensor) -> SparseFormat:
    if not isinstance(stored, GatheredFormat):
        return remade(stored, weight, mask)
    place = kept.cumsum(0) - 1  # of each kept output in the smaller weight
    inside = outputs_in_tiles(stored)
    if not kept[inside].all():
        raise ValueError("gathered: a tile would lose an output")
    order = place[inside]
    rest = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    rest[order] = False
    return tiled(stored, weight, mask, torch.cat([order, rest.nonzero().flatten()]))


def _columns(down: ProductWeight, kept: Tensor, read: Tensor) -> ProductWeight:
    """The kept columns; of these, those that are not read hold zeros."""
    weight = torch.where(read, down.weight, 0)[:, kept]
    if down.stored is None or down.mask is None:
        return replace(down, weight=weight)
    mask = (down.mask & read)[:, kept]
    made: SparseFormat
    if isinstance(down.stored, GatheredFormat):
        stored = down.stored
        inside = outputs_in_tiles(stored)
        others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        others[inside] = False
        made = tiled(stored, weight, mask, torch.cat([inside, others.nonzero().flatten()]))
    else:
        made = remade(down.stored, weight, mask)
    return replace(down, weight=weight, mask=mask, stored=made)
