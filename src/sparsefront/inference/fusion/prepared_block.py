"""Find a block's products in its graph; equal blocks are captured once."""

import math
from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.gathered.format import GatheredFormat
from torch import Tensor, nn

from sparsefront.inference.fusion.attention import ComputedOutputs, find_attentions, value_projection
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
    rebuild,
    store_tiles,
)
from sparsefront.models.recurrent import GateLinear
from sparsefront.networks import has_forward_hooks

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


def compute_only_with_weights(weight: ProductWeight) -> tuple[ProductWeight, Tensor | None]:
    """The product without outputs that have no weights, and bool [N], those that it computes; None: all, if few would vanish."""
    if weight.mask is None or weight.family not in INDEXED_FAMILIES:
        return weight, None
    computes = _whole_units(weight.mask.any(1), _block(weight, 0))
    if isinstance(weight.stored, GatheredFormat):
        computes[outputs_in_tiles(weight.stored)] = True  # pruned outputs fill tiles of joined Linears
    if not computes.any() or (~computes).sum() < WORTH_IT * computes.numel():
        return weight, None
    try:
        return _rows(weight, computes), computes
    except ValueError:  # groups of the format would be split
        return weight, None


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
        feeds_attention, reads_attention: whether attention that our kernel can compute reads all of Y, or gives X.
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
    feeds_attention: bool = False
    reads_attention: bool = False

    def beside_attention(self, *, compact: bool) -> tuple["ProductSpec", ComputedOutputs | None]:
        """The product in a block whose attention is feature-major too, and what it leaves to attention, if that reads it.

        Args:
            compact: whether to compute only outputs that have weights.
        """
        if not self.feeds_attention:
            return replace(self, x_stream=self.x_stream or self.reads_attention), None
        weight, computes = compute_only_with_weights(self.weight) if compact else (self.weight, None)
        count = len(self.weight.weight)
        if computes is None:
            computes = torch.ones(count, dtype=torch.bool, device=weight.weight.device)
        index = torch.where(computes, computes.cumsum(0) - 1, -1).int()
        vanished = self.vanished_outputs + count - len(weight.weight)
        spec = replace(self, weight=replace(weight, bias=None), y_stream=True, vanished_outputs=vanished)
        return spec, ComputedOutputs(index, self.weight.bias)

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
        has_attention: whether our kernel can compute its attention.
    """

    bare: nn.Module
    key: Key
    captured: Captured
    specs: list[ProductSpec]
    kept: dict[str, Tensor]
    has_attention: bool

    def around_attention(
        self, block: str, *, compact: bool
    ) -> tuple["PreparedBlock", dict[tuple[str, ...], ComputedOutputs]]:
        """The block with feature-major attention, and names in the block of a product's Linears -> what it leaves to attention.

        Args:
            block: its name.
            compact: as in `ProductSpec.beside_attention`.
        """
        pairs = [spec.beside_attention(compact=compact) for spec in self.specs]
        computed = {
            tuple(name.removeprefix(f"{block}.") for name in spec.weight.layers): outputs
            for spec, outputs in pairs
            if outputs is not None
        }
        return replace(self, specs=[spec for spec, _ in pairs]), computed


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
    device = next(iter(weights.values())).weight.device
    attentions = find_attentions(captured.graph, sites, other_tensors, device)
    read, results = {layer for one in attentions for layer in one.layers}, {one.out for one in attentions}
    specs = [
        replace(
            _spec(site, original[site.layers], current[site.layers], constants.get(site.layers, 0)),
            feeds_attention=read.issuperset(site.layers),
            reads_attention=site.x in results,
        )
        for site, _ in chosen
    ]
    complete = read == {layer for site, _ in chosen if read & set(site.layers) for layer in site.layers}
    return PreparedBlock(bare, key, captured, specs, other_tensors, bool(attentions) and complete)


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
