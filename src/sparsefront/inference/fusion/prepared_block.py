"""A block taken apart: its graph, its products with their weights, and what they do not cover."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from sparsefront.inference.fusion.call import Key, Unfusable
from sparsefront.inference.fusion.capture import Captured
from sparsefront.inference.fusion.compact import compacted, without_constants
from sparsefront.inference.fusion.constant_inputs import value_projection
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.product_weight import ProductWeight, join, stored_parameters
from sparsefront.inference.fusion.sites import (
    ProductSite,
    find_sites,
    hidden_pairs,
    is_feature_major,
    is_stream,
    merge_candidates,
    merged,
)


@dataclass(frozen=True)
class ProductSpec:
    """One product of a block, before a kernel is chosen.

    Args:
        weight: as it is multiplied; hidden features that vanished are gone.
        activation, residual: of its epilogue.
        x_stream, y_stream: whether X and Y are of the residual stream or hidden features, so feature-major where the block is;
            else they belong to attention, which is row-major.
        normed: whether a norm of the residual stream reads the sum with the residual, so that it can add it up itself.
        density: of its Linears as they were.
        vanished_inputs: hidden features that are gone, and inputs that it no longer reads since they are constants.
        vanished_outputs: hidden features that are gone.
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

    def before_norm(self, *, with_bias: bool) -> "ProductSpec":
        """The product alone: the norm adds the residual, and the bias where the product does not."""
        weight = self.weight if with_bias else replace(self.weight, bias=None)
        return replace(self, weight=weight, residual=False)


@dataclass(frozen=True)
class PreparedBlock:
    """What every way of rewriting a block starts from.

    Args:
        bare: the block without weights.
        key, captured: the observed call and its graph.
        specs: its products, in the order of the graph.
        kept: names of the other parameters and buffers -> tensors.
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
) -> PreparedBlock:
    """Find the products of a block and what they multiply by.

    Args:
        weights: Linear, by its name in the block -> its weight, for all Linears of the block.
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
    named = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    kept = {name: tensor for name, tensor in named.items() if name not in covered}
    chosen = _with_merges(sites, weights) if parts.joined else [(site, weights[site.layers[0]]) for site in sites]
    current = {site.layers: weight for site, weight in chosen}
    original = dict(current)
    constants: dict[tuple[str, ...], int] = {}
    for site, _ in chosen if parts.compact else ():
        if current[site.layers].mask is None or (value := value_projection(site, sites, kept)) is None:
            continue
        lighter = without_constants(weights[value.layers[0]], current[site.layers])
        if lighter is not None:
            current[site.layers], constants[site.layers] = lighter
    for up, down in hidden_pairs(site for site, _ in chosen) if parts.compact else ():
        smaller = compacted(current[up.layers], current[down.layers], up.activation)
        if smaller is not None:
            current[up.layers], current[down.layers] = smaller
    specs = [
        _spec(site, original[site.layers], current[site.layers], constants.get(site.layers, 0)) for site, _ in chosen
    ]
    return PreparedBlock(bare, key, captured, specs, kept)


def _with_merges(
    sites: list[ProductSite], weights: Mapping[str, ProductWeight]
) -> list[tuple[ProductSite, ProductWeight]]:
    """The sites in the order of the graph, with those made one that can be."""
    chosen = {site.layers[0]: (site, weights[site.layers[0]]) for site in sites}
    for group in merge_candidates(sites):
        joined = join([weights[site.layers[0]] for site in group])
        if joined is None:
            continue
        for site in group[1:]:
            del chosen[site.layers[0]]
        chosen[group[0].layers[0]] = (merged(group), joined)
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


def weights_of(
    block: nn.Module, prefix: str, formats: Mapping[str, SparseFormat], masks: Mapping[str, Tensor]
) -> dict[str, ProductWeight]:
    """Every Linear of the block, by its name in the block; `formats` and `masks` go by names in the network."""
    found = {}
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            layer = f"{prefix}.{name}"
            found[name] = ProductWeight.of(layer, module, formats.get(layer), masks.get(layer))
    return found


def stored_as(block: PreparedBlock) -> tuple[tuple[int, str], ...]:
    """Of each product the number of its Linears, and how its weight is stored."""
    return tuple(
        (len(spec.weight.layers), "" if spec.weight.stored is None else repr(stored_parameters(spec.weight.stored)))
        for spec in block.specs
    )
