"""Rewritten blocks: graphs of fused products and norms, and the original code around the products for all other calls."""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsefront.inference.fusion.attention import (
    AttentionSite,
    ComputedOutputs,
    FusedAttention,
    find_attentions,
    place_attentions,
)
from sparsefront.inference.fusion.calls import (
    Key,
    Unfusable,
    cache_layer,
    call_key,
    call_tensors,
    count_token,
    find_unsupported,
    one_token_call,
)
from sparsefront.inference.fusion.capture import Captured, GraphSizes, capture
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.placement import (
    AllOutputs,
    FusedNorm,
    FusedRowNorm,
    copy_graph,
    place_layouts,
    place_norms,
    place_products,
    place_quantizations,
    place_row_norms,
    quantizing_producers,
    remove_unread,
)
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.row_chunks import place_chunks
from sparsefront.inference.fusion.sites import ProductSite, find_sites, merge_sites, node_argument
from sparsefront.networks import layer_weight

Layers = tuple[str, ...]
log = logging.getLogger(__name__)
MOST_GRAPHS = 16  # per block, for blocks with one graph per image size; further sizes run the original code


class FusedBlock(nn.Module):
    """Replaces a block, with the same signature.

    A graph supports any batch size and length that the block treats alike. Calls of another kind (with another mask, or none)
    are captured from the block's original code when they occur, and so are those of one new token per row with a static KV
    cache, whose graph writes into the cache. Calls that no graph supports, such as with another cache or of a prompt, run the
    original code with the products as its Linears.

    Args:
        bare: the block without weights, from `capture.skeleton`.
        products: names of the Linears of a product -> the product; covers all Linears that the block calls.
        kept: name -> the block's other parameters and buffers.
        feature_major: whether the residual stream is feature-major; else row-major.
        row_major_exit: whether to convert the output to row-major, for a reader that is no feature-major block.
        hidden_bytes: of hidden features between two products that are computed at a time; None: all.
        parts: with which the products were made.
        norm_biases: names of the Linears of a product whose residual the next norm adds -> the bias that the norm adds too;
            None where the product adds it.
        attention: whether our kernel computes attention, where it can.
        computed: names of the Linears of a product before a feature-major attention -> what it leaves to that.
    """

    def __init__(
        self,
        bare: nn.Module,
        products: Mapping[Layers, FusedProduct],
        kept: Mapping[str, Tensor],
        *,
        feature_major: bool,
        row_major_exit: bool = False,
        hidden_bytes: int | None = None,
        parts: FusionParts = ALL_PARTS,
        norm_biases: Mapping[Layers, Tensor | None] = MappingProxyType({}),
        attention: bool = False,
        computed: Mapping[Layers, ComputedOutputs] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._parts, self.attention = parts, attention
        self.feature_major, self.row_major_exit, self.hidden_bytes = feature_major, row_major_exit, hidden_bytes
        self._bare = [bare]  # in a list, so that its meta tensors are not registered here
        # the original code, made when a call needs it; in a list, since its tensors are registered here already
        self._original: list[nn.Module] = []
        self._unserved: set[Key] = set()
        self.original_code_is_right = True  # until a check fails
        self.fuses_cached = True  # until a graph with a static cache is wrong, or slower than the original code
        self._cache_layer = cache_layer(bare)
        self._layers = tuple(products)
        self.products = nn.ModuleList(products.values())
        self._kept_names = tuple(kept)
        for place, tensor in enumerate(kept.values()):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"kept_{place}", tensor)
            else:
                self.register_buffer(f"kept_{place}", tensor, persistent=False)
        self._normed = tuple(norm_biases)
        for place, bias in enumerate(norm_biases.values()):
            self.register_buffer(f"norm_bias_{place}", bias, persistent=False)
        self._before_attention = tuple(computed)
        for place, outputs in enumerate(computed.values()):
            self.register_buffer(f"computed_index_{place}", outputs.index, persistent=False)
            self.register_buffer(f"computed_bias_{place}", outputs.bias, persistent=False)
        self.graphs = nn.ModuleList()
        self._graphs_of: dict[Key, list[int]] = {}
        self._sizes: list[GraphSizes] = []
        self._out_specs: list[pytree.TreeSpec] = []
        # networks read attributes such as self_attn.batch_first
        for name, value in {**vars(bare), **bare._modules}.items():
            if not (name.startswith("_") or hasattr(self, name) or isinstance(value, Tensor)):
                vars(self)[name] = value  # without registering its meta tensors

    @property
    def product_of(self) -> dict[Layers, FusedProduct]:
        return dict(zip(self._layers, self._products(), strict=True))

    def _products(self) -> list[FusedProduct]:
        return [part for part in self.products if isinstance(part, FusedProduct)]

    @property
    def norms(self) -> list[FusedNorm | FusedRowNorm]:
        """The fused norms of the first graph."""
        parts = self.graphs[0].children() if len(self.graphs) else ()
        return [part for part in parts if isinstance(part, FusedNorm | FusedRowNorm)]

    @property
    def has_own_attention(self) -> bool:
        """Whether our kernel computes attention in the first graph."""
        return len(self.graphs) > 0 and any(isinstance(part, FusedAttention) for part in self.graphs[0].children())

    def add_call(self, key: Key, captured: Captured) -> None:
        """Add the graph of one more kind of call.

        Raises:
            Unfusable: the graph's Linears do not match the products.
        """
        graph = copy_graph(captured.graph)
        sites = dict(zip((f"product_{place}" for place in range(len(self._layers))), self._sites(graph), strict=True))
        added = self._find_added(sites.values())
        products = dict(zip(sites, self._products(), strict=True))
        modules: dict[str, Any] = products | quantizing_producers(sites, products)
        tensors, device, computed = self._collect_kept(), self._products()[0].device, self._collect_computed()
        attentions = self._find_attentions(graph, sites.values(), computed)
        if not attentions:
            names = {site.layers: name for name, site in sites.items()}
            modules |= {names[layers]: AllOutputs(products[names[layers]], part) for layers, part in computed.items()}
        place_products(graph, {name: _without_sum(site, added) for name, site in sites.items()})
        modules |= place_attentions(graph, attentions, sites, computed, device)
        remove_unread(graph)
        modules |= place_quantizations(graph, modules)
        if self.feature_major:
            modules |= place_norms(graph, tensors, added)
            # attention reads a mask besides, which is not in the stream
            readers = [name for name, part in modules.items() if not isinstance(part, FusedAttention)]
            place_layouts(graph, readers, row_major_exit=self.row_major_exit)
        else:
            modules |= place_row_norms(graph, tensors, added, modules)
        if self.hidden_bytes is not None:
            modules |= place_chunks(graph, modules, self.hidden_bytes)
        modules |= {node.target: tensors[node.target] for node in graph.find_nodes(op="get_attr")}
        graph.lint()
        self.graphs.append(fx.GraphModule(modules, graph))
        self._graphs_of.setdefault(key, []).append(len(self.graphs) - 1)
        self._sizes.append(captured.sizes)
        self._out_specs.append(captured.out_spec)

    def serves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether there is a graph for such a call.

        Raises:
            Unfusable: an argument is neither a tensor nor a plain constant.
        """
        return self._graph_for(call_key(args, kwargs), call_tensors(args, kwargs)) is not None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call: Any = args, kwargs, None
        kind = find_unsupported(args, kwargs)
        if kind is not None:
            call = one_token_call(args, kwargs, self._cache_layer) if self.fuses_cached else f"is called with a {kind}"
            if isinstance(call, str):
                return self._run_original_code(call, args, kwargs)
        key, tensors, cached_in = call_key(*call[:2]), call_tensors(*call[:2]), call[2]
        place = self._graph_for(key, tensors)
        if place is None:
            reason = self._capture(key, *call[:2])
            if reason is not None:
                return self._run_original_code(reason, args, kwargs)
            place = len(self.graphs) - 1
        outputs = self.graphs[place](*tensors)
        if cached_in is not None:
            count_token(cached_in)
        spec = self._out_specs[place]
        return outputs[0] if spec.is_leaf() else pytree.tree_unflatten(outputs, spec)

    def _run_original_code(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.compiler.is_compiling():
            _log_once(type(self._bare[0]).__name__, reason)
        if not self.original_code_is_right:
            raise Unfusable(
                f"no graph of this block serves the call: it {reason}; fuse=False leaves blocks as they are"
            )
        return self.original_output(args, kwargs)

    def original_output(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The output of the block's original code with the products."""
        if not self._original:
            self.make_original_code()
        return self._original[0](*args, **kwargs)

    @torch.compiler.disable
    def make_original_code(self) -> None:
        """Build the original code; may be called ahead of a call that is traced."""
        biases = {layers: getattr(self, f"norm_bias_{place}") for place, layers in enumerate(self._normed)}
        self._original[:] = [
            original_code(self._bare[0], self.product_of, self._collect_kept(), biases, self._collect_computed())
        ]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self._original:  # it has the old tensors
            self.make_original_code()
        return self

    def _graph_for(self, key: Key, tensors: list[Tensor]) -> int | None:
        """Index of the graph for such a call, or None."""
        return next((place for place in self._graphs_of.get(key, ()) if self._sizes[place].allow(tensors)), None)

    @torch.compiler.disable
    def _capture(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Add a graph for such calls; returns the reason if there is none.

        Raises:
            Unfusable: the block's Linears in this call do not match the products.
        """
        if key in self._unserved or len(self.graphs) >= MOST_GRAPHS:
            return "is called in many ways"
        with torch.inference_mode(False):
            try:
                captured = capture(self._bare[0], args, kwargs)
            except Unfusable as reason:
                self._unserved.add(key)
                return str(reason)
            try:
                self.add_call(key, captured)
            except Unfusable as reason:
                raise Unfusable(
                    f"no graph of this block serves the call, and the block {reason}; fuse=False leaves blocks as they are"
                ) from reason
        return None

    def _collect_kept(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"kept_{place}") for place, name in enumerate(self._kept_names)}

    def _find_attentions(
        self, graph: fx.Graph, sites: Iterable[ProductSite], computed: Mapping[Layers, ComputedOutputs]
    ) -> list[AttentionSite]:
        """The attentions of a graph for our kernel; none unless they read all outputs of their products, as they were chosen."""
        if not self.attention:
            return []
        every = find_sites(graph, self._bare[0], self._parts)
        attentions = find_attentions(graph, every, self._collect_kept(), self._products()[0].device)
        read = {layer for attention in attentions for layer in attention.layers}
        products = [site.layers for site in sites if read.intersection(site.layers)]
        complete = read == {layer for layers in products for layer in layers}
        return attentions if complete and (not computed or set(products) == set(computed)) else []

    def _collect_computed(self) -> dict[Layers, ComputedOutputs]:
        return {
            layers: ComputedOutputs(getattr(self, f"computed_index_{place}"), getattr(self, f"computed_bias_{place}"))
            for place, layers in enumerate(self._before_attention)
        }

    def _find_added(self, sites: Iterable[ProductSite]) -> dict[fx.Node, tuple[int, Tensor | None]]:
        """Norm that adds a residual -> index of the residual in the sum's arguments, and the product's bias.

        Raises:
            Unfusable: no norm follows a product whose residual a norm should add.
        """
        biases = {layers: getattr(self, f"norm_bias_{place}") for place, layers in enumerate(self._normed)}
        added = {}
        for site in sites:
            if site.layers in biases:
                if site.norm is None:
                    raise Unfusable(f"normalizes the sum of {site.layers[0]} in one call and not in others")
                added[site.norm] = site.out.args.index(site.residual), biases[site.layers]
        return added

    def _sites(self, graph: fx.Graph) -> list[ProductSite]:
        """The site of each product, in the products' order."""
        every = find_sites(graph, self._bare[0], self._parts)
        site_by_layer = {site.layers[0]: site for site in every}
        covered = {name for layers in self._layers for name in layers}
        if len(every) != len(site_by_layer) or set(site_by_layer) != covered:
            raise Unfusable("calls its Linears otherwise than its products are made for")
        sites = [
            site_by_layer[layers[0]] if len(layers) == 1 else merge_sites([site_by_layer[name] for name in layers])
            for layers in self._layers
        ]
        for site, product in zip(sites, self.products, strict=True):
            if site.activation != product.activation:
                raise Unfusable(f"follows {site.layers[0]} by {site.activation} in one call and by another in others")
        return sites


class OriginalCode(nn.Module):
    """A rewritten block as its original code around the products."""

    def __init__(self, block: FusedBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.block.original_output(args, kwargs)


@cache
def _log_once(block: str, reason: str) -> None:
    log.info("a rewritten %s %s: its own code runs, around its products", block, reason)


def _without_sum(site: ProductSite, added: Mapping[fx.Node, Any]) -> ProductSite:
    """The site without its residual if the norm after it adds that."""
    if site.norm not in added:
        return site
    return replace(site, residual=None, out=node_argument(site.out, 1 - site.out.args.index(site.residual)))


def original_code(
    bare: nn.Module,
    products: Mapping[Layers, FusedProduct],
    kept: Mapping[str, Tensor],
    norm_biases: Mapping[Layers, Tensor | None],
    computed: Mapping[Layers, ComputedOutputs],
) -> nn.Module:
    """A runnable copy of the block's original module; tensors and products are shared with the caller.

    Args:
        bare: from `capture.skeleton`; unchanged.
        products, kept, norm_biases, computed: as in `FusedBlock`.
    """
    tensors = {**dict(bare.named_parameters()), **dict(bare.named_buffers())}
    memo: dict[int, Any] = {id(tensors[name]): tensor for name, tensor in kept.items()}
    code = copy.deepcopy(bare, memo)
    for layers, product in products.items():
        sizes = [len(layer_weight(bare.get_submodule(name))) for name in layers]
        run = AllOutputs(product, computed[layers]) if layers in computed else product.without_epilogue
        shared = _SharedProduct(product, run, sizes, norm_biases.get(layers))
        for place, name in enumerate(layers):
            code.set_submodule(name, _Part(shared, place))
    return code.eval()


class _SharedProduct(nn.Module):
    """One product for several Linears that read the same x: the first call multiplies, the others take slices.

    Args:
        run: computes all its outputs, without epilogue.
        sizes: outputs of each Linear.
        bias: the bias if the norm after the product adds it; else None.
    """

    def __init__(
        self, product: FusedProduct, run: Callable[[Tensor], Tensor], sizes: list[int], bias: Tensor | None
    ) -> None:
        super().__init__()
        self.product, self.run, self.sizes, self.bias = product, run, sizes, bias
        self._x: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def part(self, x: Tensor, place: int) -> Tensor:
        """Output of the Linear at this place for x [..., K], in any call order."""
        if place == 0 or x is not self._x:
            y = self.run(x)
            y = y if self.bias is None else y + self.bias.to(y.dtype)
            self._x, self._outputs = x, y.split(self.sizes, dim=-1) if len(self.sizes) > 1 else (y,)
        output = self._outputs[place]
        if place == len(self.sizes) - 1:  # nothing outlives the forward pass
            self._x, self._outputs = None, ()
        return output


class _Part(nn.Module):
    """Replaces one Linear of a product in the block."""

    def __init__(self, shared: _SharedProduct, place: int) -> None:
        super().__init__()
        self.shared, self.place = shared, place
        self.out_features, self.in_features = shared.sizes[place], shared.product.in_features

    @property
    def weight(self) -> Tensor:
        """[N, K] filled with NaN, for code that reads its dtype or device."""
        product = self.shared.product
        like = torch.full((1, 1), math.nan, dtype=product.format.dtype, device=product.device)
        return like.expand(self.out_features, self.in_features)

    @property
    def bias(self) -> Tensor | None:
        return self.shared.product.bias

    def forward(self, input: Tensor) -> Tensor:
        """The argument is named as in nn.Linear."""
        return self.shared.part(input, self.place)
