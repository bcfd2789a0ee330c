"""Find a block's products in its graph; equal blocks are captured once."""

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.inference.fusion.calls import BlockCall, Key, Unfusable, call_key, call_tensors
from sparsefront.inference.fusion.capture import Captured, capture, plain_attributes, skeleton, structure
from sparsefront.inference.fusion.constant_features import compact_hidden, drop_constant_inputs, value_projection
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.sites import (
    ProductSite,
    ProductWeight,
    describe_format,
    find_pairs,
    find_sites,
    is_feature_major,
    is_stream,
    join,
    merge_candidates,
    merge_sites,
)
from sparsefront.models.recurrent import GateLinear
from sparsefront.networks import has_forward_hooks


@dataclass(frozen=True)
class ProductSpec:
    """One product of a block, before a kernel is chosen.

    Args:
        weight: without removed hidden features.
        activation, residual: of its epilogue.
        x_stream, y_stream: whether X and Y belong to the residual stream or are hidden features, so that they are feature-major
            if the block is; else they belong to attention, which is row-major.
        normed: whether a norm of the residual stream reads the sum with the residual, so that the norm can add it.
        density: of its original Linears.
        vanished_inputs: number of hidden features removed, and of constant inputs that it no longer reads.
        vanished_outputs: number of hidden features removed.
    """

    weight: ProductWeight
    activation: str
    residual: bool
    x_stream: bool
    y_stream: bool
    normed: bool
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
        normed=site.norm is not None,
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
