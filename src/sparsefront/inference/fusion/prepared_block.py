"""Find a block's products in its graph; equal blocks are captured once."""

import math
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered.format import GatheredFormat
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.calls import BlockCall, Key, Unfusable, call_key, call_tensors
from sparsefront.inference.fusion.capture import Captured, capture, plain_attributes, skeleton, structure
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.sites import (
    STREAM_NORMS,
    ProductSite,
    ProductWeight,
    complement,
    describe_format,
    find_pairs,
    find_sites,
    is_feature_major,
    is_stream,
    join,
    merge_candidates,
    merge_sites,
    outputs_in_tiles,
    read_name,
    rebuild,
    store_tiles,
)
from sparsefront.models.recurrent import GateLinear
from sparsefront.networks import has_forward_hooks

# Constant features of the value projection.
#
# A fully pruned output of the value projection equals its bias for every token. Attention averages values over tokens with
# weights that sum to one, so that the feature still equals that bias after attention.

TOLERANCE = 1e-4
SIZES = (2, 3, 5, 7, 11)  # for the free sizes of a graph, in order of appearance


def value_projection(
    reader: ProductSite, sites: Iterable[ProductSite], kept: Mapping[str, Tensor]
) -> ProductSite | None:
    """The Linear whose output features reach the reader only averaged over tokens, not mixed with each other; or None.

    Found by running the operators in between on small random tensors: constant features must arrive unchanged and in
    order, and noise in some features must not affect others.

    Args:
        reader: a product after attention.
        sites: Linears of the block, not joined.
        kept: name -> parameters of the block outside of Linears.
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
        except Exception:  # operators that fail on small tensors are not known to preserve constants
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
    """Evaluate a node recursively; `known` caches results."""
    if node not in known:
        if node.op == "placeholder":
            value = node.meta["val"]
            known[node] = torch.ones(_shape(node, sizes), dtype=value.dtype)
            if value.is_floating_point():
                known[node].zero_()  # an additive mask that masks nothing, as a bool mask of ones
        elif node.op == "get_attr":
            known[node] = kept[read_name(node)].detach().float().cpu()
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda part: _run(part, known, sizes, kept))
            assert callable(node.target)
            known[node] = node.target(*args, **kwargs)
    return known[node]


def _shape(node: fx.Node, sizes: dict[str, int]) -> tuple[int, ...]:
    """The node's shape with numbers from SIZES for free sizes."""
    shape = []
    for size in node.meta["val"].shape:
        name = str(size)
        if not name.isdigit():
            sizes.setdefault(name, SIZES[len(sizes)])
        shape.append(int(name) if name.isdigit() else sizes[name])
    return tuple(shape)


def _linears_before(node: fx.Node) -> set[fx.Node]:
    """The nearest Linears upstream of a node."""
    linears: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.target is torch.ops.aten.linear.default:
            linears.add(current)
        else:
            pending.extend(current.all_input_nodes)
    return linears


# Removal of hidden features without weights between two products.

# Smallest fraction of hidden features to remove: layers of one network then differ in shape, and each is tuned separately.
WORTH_IT = 1 / 8
# families with index lists of inputs or blocks, which can shrink
INDEXED_FAMILIES = ("gathered", "gathered_2_4", "blocked", "blocked_2_4")
ROUNDING = 16  # kept hidden features are a multiple of it, so that rows of a dense product are aligned


def compact_hidden(
    up: ProductWeight, down: ProductWeight, activation: str
) -> tuple[ProductWeight, ProductWeight] | None:
    """Remove hidden features for which up has no weights from both products; None where that changes little.

    Such a feature is the constant act(bias) for every row. Its contribution is added to down's bias:
    b'[n] = b[n] + sum over pruned j of W[n, j] act(bias[j]), in float32.
    """
    if up.mask is None:
        return None
    unit = math.lcm(_block(up, 0), _block(down, 1))
    read = _whole_units(up.mask.any(1), unit)
    keeps = _round_up(read, unit)
    if (~keeps).sum() < WORTH_IT * keeps.numel():
        return None
    try:
        smaller_up, smaller_down = _rows(up, keeps), _columns(down, keeps, read)
    except ValueError:  # groups of the format would be split
        return None
    return smaller_up, replace(smaller_down, bias=fold_bias(down, _constants(up, activation), ~read))


def drop_constant_inputs(value: ProductWeight, reader: ProductWeight) -> tuple[ProductWeight, int] | None:
    """The reader without inputs for which `value`, before attention, has no weights, and their number; None without any.

    The features stay in the tensor in between, since heads have equal widths; only the reader's index lists shrink.
    """
    if value.mask is None or reader.mask is None or reader.family not in INDEXED_FAMILIES:
        return None
    read = _whole_units(value.mask.any(1), _block(reader, 1))
    if not (reader.mask & ~read).any():
        return None
    try:
        lighter = _columns(reader, torch.ones_like(read), read)
    except ValueError:
        return None
    return replace(lighter, bias=fold_bias(reader, _constants(value, "none"), ~read)), int((~read).sum())


def fold_bias(down: ProductWeight, constants: Tensor, pruned: Tensor) -> Tensor:
    """down's bias plus the contribution of pruned inputs, which are constant for every row: float32 [N] (or wider).

    Args:
        constants: [K], the value of each input; only pruned ones are read.
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
    """Outputs (side 0) or inputs (side 1) per block if the weight is stored in blocks, which must stay whole; else 1."""
    return weight.stored.block[side] if isinstance(weight.stored, BlockedFormat | Blocked24Format) else 1


def _whole_units(alive: Tensor, unit: int) -> Tensor:
    """bool mask of all features in units of which any feature is alive."""
    if len(alive) % unit:
        return torch.ones_like(alive)
    return alive.view(-1, unit).any(1).repeat_interleave(unit)


def _round_up(read: Tensor, unit: int) -> Tensor:
    """The read features plus enough other units for a multiple of ROUNDING, and at least one unit."""
    keeps = read.cpu().clone()  # on a GPU each question would wait for it
    while not keeps.all() and (not keeps.any() or int(keeps.sum()) % ROUNDING):
        first = int((~keeps).nonzero()[0]) // unit * unit
        keeps[first : first + unit] = True
    return keeps.to(read.device)


def _rows(up: ProductWeight, kept: Tensor) -> ProductWeight:
    assert up.mask is not None and up.stored is not None  # the product is pruned
    weight, mask = up.weight[kept], up.mask[kept]
    bias = None if up.bias is None else up.bias[kept]
    stored = _store_rows(up.stored, weight, mask, kept)
    return replace(up, rows=(len(weight),), weight=weight, bias=bias, mask=mask, stored=stored)


def _store_rows(stored: SparseFormat, weight: Tensor, mask: Tensor, kept: Tensor) -> SparseFormat:
    if not isinstance(stored, GatheredFormat):
        return rebuild(stored, weight, mask)
    place = kept.cumsum(0) - 1  # of each kept output in the smaller weight
    inside = outputs_in_tiles(stored)
    if not kept[inside].all():
        raise ValueError("gathered: a tile would lose an output")
    order = place[inside]
    return store_tiles(stored, weight, mask, torch.cat([order, complement(order, len(weight))]))


def _columns(down: ProductWeight, kept: Tensor, read: Tensor) -> ProductWeight:
    """Select the kept columns; those that are not read become zero."""
    weight = torch.where(read, down.weight, 0)[:, kept]
    if down.stored is None or down.mask is None:
        return replace(down, weight=weight)
    mask = (down.mask & read)[:, kept]
    if not isinstance(down.stored, GatheredFormat):
        return replace(down, weight=weight, mask=mask, stored=rebuild(down.stored, weight, mask))
    inside = outputs_in_tiles(down.stored)
    order = torch.cat([inside, complement(inside, len(weight))])
    return replace(down, weight=weight, mask=mask, stored=store_tiles(down.stored, weight, mask, order))


@dataclass(frozen=True)
class ProductSpec:
    """One product of a block, before a kernel is chosen.

    Args:
        weight: without removed hidden features.
        activation, residual: of its epilogue.
        x_stream, y_stream: whether X and Y belong to the residual stream or are hidden features, so that they are feature-major
            if the block is; else they belong to attention, which is row-major.
        norm: kind of the norm of the residual stream that reads the sum with the residual, and so can add it; or None.
        density: of its original Linears.
        vanished_inputs: number of hidden features removed, and of constant inputs that it no longer reads.
        vanished_outputs: number of hidden features removed.
    """

    weight: ProductWeight
    activation: str
    residual: bool
    x_stream: bool
    y_stream: bool
    norm: str | None
    density: float
    vanished_inputs: int = 0
    vanished_outputs: int = 0

    def without_residual(self, *, with_bias: bool) -> "ProductSpec":
        """The product without its residual, which the norm adds; without `with_bias` the norm adds the bias, too."""
        weight = self.weight if with_bias else replace(self.weight, bias=None)
        return replace(self, weight=weight, residual=False)


@dataclass(frozen=True)
class PreparedBlock:
    """A block's graph and products, before kernels and layouts are chosen.

    Args:
        bare: the block without weights.
        key, captured: the observed call and its graph.
        specs: its products, in graph order.
        kept: name -> other parameters and buffers.
    """

    bare: nn.Module
    key: Key
    captured: Captured
    specs: list[ProductSpec]
    kept: dict[str, Tensor]


def prepare_block(
    block: nn.Module,
    bare: nn.Module,
    key: Key,
    captured: Captured,
    weights: Mapping[str, ProductWeight],
    parts: FusionParts = ALL_PARTS,
    *,
    causal: bool = False,
) -> PreparedBlock:
    """Find the products of a block and their weights.

    Args:
        weights: name in the block -> weight, for all Linears of the block.
        causal: whether a token may attend to none, such as padding before a prompt: attention's output is then zero instead of
            an average of values.
    Raises:
        Unfusable: the graph has no Linear of the block, or calls one twice.
    """
    sites = find_sites(captured.graph, bare, parts)
    layers = [site.layers[0] for site in sites]
    if not sites:
        raise Unfusable("multiplies by none of its Linears")
    if len(set(layers)) != len(layers):
        raise Unfusable("calls one of its Linears twice")
    covered = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    tensors = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    other_tensors = {name: tensor for name, tensor in tensors.items() if name not in covered}
    try:
        scales = {site.layers[0]: tensors[site.scale] for site in sites if site.scale is not None}
        weights = {name: weight.scale(scales[name]) if name in scales else weight for name, weight in weights.items()}
    except ValueError as reason:
        raise Unfusable(f"scales what a Linear gives, whose weight cannot be: {reason}") from reason
    chosen = _with_merges(sites, weights) if parts.joined else [(site, weights[site.layers[0]]) for site in sites]
    current = {site.layers: weight for site, weight in chosen}
    original = dict(current)
    constants: dict[tuple[str, ...], int] = {}
    for site, _ in chosen if parts.compact and not causal else ():
        if current[site.layers].mask is None or (value := value_projection(site, sites, other_tensors)) is None:
            continue
        lighter = drop_constant_inputs(weights[value.layers[0]], current[site.layers])
        if lighter is not None:
            current[site.layers], constants[site.layers] = lighter
    for up, down in find_pairs(site for site, _ in chosen) if parts.compact else ():
        smaller = compact_hidden(current[up.layers], current[down.layers], up.activation)
        if smaller is not None:
            current[up.layers], current[down.layers] = smaller
    specs = [
        _spec(site, original[site.layers], current[site.layers], constants.get(site.layers, 0)) for site, _ in chosen
    ]
    return PreparedBlock(bare, key, captured, specs, other_tensors)


def _with_merges(
    sites: list[ProductSite], weights: Mapping[str, ProductWeight]
) -> list[tuple[ProductSite, ProductWeight]]:
    """The sites in graph order, joined where possible."""
    chosen = {site.layers[0]: (site, weights[site.layers[0]]) for site in sites}
    for group in merge_candidates(sites):
        joined = join([weights[site.layers[0]] for site in group])
        if joined is None:
            continue
        for site in group[1:]:
            del chosen[site.layers[0]]
        chosen[group[0].layers[0]] = (merge_sites(group), joined)
    return list(chosen.values())


def _spec(site: ProductSite, original: ProductWeight, weight: ProductWeight, constants: int) -> ProductSpec:
    (n, k), (smaller_n, smaller_k) = original.weight.shape, weight.weight.shape
    return ProductSpec(
        weight,
        site.activation,
        site.residual is not None,
        x_stream=is_feature_major(site.x),
        y_stream=len(site.layers) == 1 and is_stream(site.users),
        norm=None if site.norm is None else STREAM_NORMS[site.norm.target],
        density=original.density,
        vanished_inputs=k - smaller_k + constants,
        vanished_outputs=n - smaller_n,
    )


def _is_causal(block: nn.Module, call: BlockCall) -> bool:
    """Whether tokens of this block attend to different tokens, by `is_causal` of its modules or a bool mask [..., L, L]."""
    if any(getattr(part, "is_causal", False) for part in block.modules()):
        return True
    tensors = call_tensors(call.args, call.kwargs)
    masks = [tensor for tensor in tensors if tensor.dtype == torch.bool and tensor.dim() > 2]
    return any(not torch.equal(mask, mask[..., :1, :].expand_as(mask)) for mask in masks)


def product_weights(
    block: nn.Module, prefix: str, formats: Mapping[str, SparseFormat], masks: Mapping[str, Tensor]
) -> dict[str, ProductWeight]:
    """Name in the block -> weight of every Linear; keys of `formats` and `masks` are names in the network."""
    weights = {}
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            layer = f"{prefix}.{name}"
            weights[name] = ProductWeight.of(layer, module, formats.get(layer), masks.get(layer))
    return weights


def storage_key(block: PreparedBlock) -> tuple[tuple[int, str], ...]:
    """Per product, its number of Linears and the storage of its weight."""
    return tuple(
        (len(spec.weight.layers), "" if spec.weight.stored is None else repr(describe_format(spec.weight.stored)))
        for spec in block.specs
    )


# Captured graphs of a network's blocks, shared by blocks of equal structure and call.

Group = Hashable


class BlockCaptures:
    """Captures and prepares blocks.

    Attributes:
        groups: prepared block -> key of its group of equal blocks.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._skeletons: dict[str, nn.Module] = {}
        # structure and call -> graphs, each with the attribute values that it depends on
        self._captured: dict[Hashable, list[tuple[Hashable, Captured]]] = {}

    def prepare(
        self,
        net: nn.Module,
        name: str,
        call: BlockCall | None,
        called: Container[str],
        formats: Mapping[str, SparseFormat],
        masks: Mapping[str, Tensor],
        parts: FusionParts = ALL_PARTS,
    ) -> PreparedBlock:
        """Capture a block and find its products.

        Args:
            net: the network, in eval mode.
            name: of the block.
            call: the observed call; None where it was not called.
            called: names of the Linears of the net that the observed forward calls as modules.
            formats, masks: as in `fuse_blocks`.
        Raises:
            Unfusable: the block cannot be rewritten.
        """
        if call is None:
            raise Unfusable("is not called in the observed forward")
        block = net.get_submodule(name)
        if any(has_forward_hooks(part) for part in block.modules()):
            raise Unfusable("has forward hooks, which a graph would not call")
        for layer, part in block.named_modules():
            mask = masks.get(f"{name}.{layer}")
            if isinstance(part, nn.Conv2d | GateLinear) and mask is not None and not mask.all():
                kind = "convolution" if isinstance(part, nn.Conv2d) else "LSTM"
                raise Unfusable(f"has a pruned {kind}, {layer}, which its graph would run dense")
        bare = self._skeleton(name, block)
        key = call_key(call.args, call.kwargs)
        group, captured = self._graph(block, bare, key, call)
        weights = product_weights(block, name, formats, masks)
        prepared = prepare_block(block, bare, key, captured, weights, parts, causal=_is_causal(block, call))
        for layer in (layer for spec in prepared.specs for layer in spec.weight.layers):
            if layer not in called:
                raise Unfusable(f"reads the weight of {layer.removeprefix(f'{name}.')} without a call of that layer")
        self.groups[name] = group
        return prepared

    def another_call(self, block: nn.Module, name: str, call: BlockCall) -> tuple[Key, Captured]:
        """The graph of another call of a prepared block.

        Raises:
            Unfusable: the call cannot be captured.
        """
        key = call_key(call.args, call.kwargs)
        return key, self._graph(block, self._skeleton(name, block), key, call)[1]

    def _skeleton(self, name: str, block: nn.Module) -> nn.Module:
        if name not in self._skeletons:
            self._skeletons[name] = skeleton(block)
        return self._skeletons[name]

    def _graph(self, block: nn.Module, bare: nn.Module, key: Hashable, call: BlockCall) -> tuple[Group, Captured]:
        """The graph of a block of equal structure, call and attribute values; captured if there is none yet."""
        sizes = tuple(tuple(tensor.shape) for tensor in call_tensors(call.args, call.kwargs))
        alike = structure(block), key, sizes
        graphs = self._captured.setdefault(alike, [])
        for place, (attributes, captured) in enumerate(graphs):
            if plain_attributes(block, captured.reads) == attributes:
                return (alike, place), captured
        captured = capture(bare, call.args, call.kwargs)
        graphs.append((plain_attributes(block, captured.reads), captured))
        return (alike, len(graphs) - 1), captured
