"""A block rewritten: it is called as the block was, and runs a graph of fused products."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsefront.inference.fusion.call import Key, Unfusable, call_key, call_tensors
from sparsefront.inference.fusion.capture import Captured, capture
from sparsefront.inference.fusion.fused_norm import FusedNorm
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.graph_sizes import GraphSizes
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.rewrite import copied, place_layouts, place_norms, place_products
from sparsefront.inference.fusion.sites import ProductSite, find_sites, merged

Layers = tuple[str, ...]


class FusedBlock(nn.Module):
    """The forward of a block, with its signature.

    A graph serves any batch and length that the block treats alike. Calls of another kind (with another mask, or none) are
    captured when they come, from the code of the block.

    Args:
        bare: the block without weights, from `capture.skeleton`.
        products: names of the Linears that are one product -> the product; all Linears that the block calls.
        kept: names of the block's other parameters and buffers -> their tensors.
        feature_major: whether the residual stream is feature-major; else row-major, and norms stay PyTorch's.
        row_major_exit: whether the result is brought back to row-major, for a reader that is no such block.
        parts: of the rewriting, with which the products were made.
        norm_biases: names of the Linears of a product whose residual is added by the norm behind it -> the bias that the norm
            adds too, None where the product does.
    """

    def __init__(
        self,
        bare: nn.Module,
        products: Mapping[Layers, FusedProduct],
        kept: Mapping[str, Tensor],
        *,
        feature_major: bool,
        row_major_exit: bool = False,
        parts: FusionParts = ALL_PARTS,
        norm_biases: Mapping[Layers, Tensor | None] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._parts = parts
        self.feature_major, self.row_major_exit = feature_major, row_major_exit
        self._bare = [bare]  # in a list: its tensors, on the meta device, are none of this module's
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
        self.graphs = nn.ModuleList()
        self._graphs_of: dict[Key, list[int]] = {}
        self._sizes: list[GraphSizes] = []
        self._out_specs: list[pytree.TreeSpec] = []

    @property
    def product_of(self) -> dict[Layers, FusedProduct]:
        return dict(zip(self._layers, self.products, strict=True))

    @property
    def norms(self) -> list[FusedNorm]:
        """LayerNorms that are feature-major."""
        return [part for part in self.graphs[0].children() if isinstance(part, FusedNorm)] if len(self.graphs) else []

    def add_call(self, key: Key, captured: Captured) -> None:
        """Serve one more kind of call.

        Raises:
            Unfusable: the graph calls Linears otherwise than the products are made for.
        """
        graph = copied(captured.graph)
        sites = dict(zip((f"product_{place}" for place in range(len(self._layers))), self._sites(graph), strict=True))
        added = self._added_by_norms(sites.values())
        place_products(graph, {name: _without_sum(site, added) for name, site in sites.items()})
        modules: dict[str, Any] = dict(zip(sites, self.products, strict=True))
        kept = self._kept()
        if self.feature_major:
            modules |= place_norms(graph, kept, added)
            place_layouts(graph, tuple(modules), row_major_exit=self.row_major_exit)
        modules |= {node.target: kept[node.target] for node in graph.find_nodes(op="get_attr")}
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
        key = call_key(args, kwargs)
        tensors = call_tensors(args, kwargs)
        place = self._graph_for(key, tensors)
        if place is None:
            self._capture(key, args, kwargs)
            place = len(self.graphs) - 1
        outputs = self.graphs[place](*tensors)
        spec = self._out_specs[place]
        return outputs[0] if spec.is_leaf() else pytree.tree_unflatten(outputs, spec)

    def _graph_for(self, key: Key, tensors: list[Tensor]) -> int | None:
        """Which graph is right for such a call, if one is."""
        return next((place for place in self._graphs_of.get(key, ()) if self._sizes[place].allow(tensors)), None)

    @torch.compiler.disable
    def _capture(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with torch.inference_mode(False):
                self.add_call(key, capture(self._bare[0], args, kwargs))
        except Unfusable as reason:
            raise Unfusable(
                f"no graph of this block serves the call, and the block {reason}; fuse=False leaves blocks as they are"
            ) from reason

    def _kept(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"kept_{place}") for place, name in enumerate(self._kept_names)}

    def _added_by_norms(self, sites: Iterable[ProductSite]) -> dict[fx.Node, tuple[int, Tensor | None]]:
        """Norm -> which argument of the sum is the residual that it adds, and the bias of the product.

        Raises:
            Unfusable: a product that was made for a norm is followed by none in this graph.
        """
        biases = {layers: getattr(self, f"norm_bias_{place}") for place, layers in enumerate(self._normed)}
        added = {}
        for site in sites:
            if site.layers in biases:
                if site.norm is None:
                    raise Unfusable(f"normalises the sum of {site.layers[0]} in one call and not in others")
                added[site.norm] = site.out.args.index(site.residual), biases[site.layers]
        return added

    def _sites(self, graph: fx.Graph) -> list[ProductSite]:
        """The site of each product, in their order."""
        found = {site.layers[0]: site for site in find_sites(graph, self._bare[0], self._parts)}
        calls = len(graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))
        covered = {name for layers in self._layers for name in layers}
        if calls != len(found) or set(found) != covered:
            raise Unfusable("calls its Linears otherwise than its products are made for")
        sites = [
            found[layers[0]] if len(layers) == 1 else merged([found[name] for name in layers])
            for layers in self._layers
        ]
        for site, product in zip(sites, self.products, strict=True):
            if site.activation != product.activation:
                raise Unfusable(f"follows {site.layers[0]} by {site.activation} in one call and by another in others")
        return sites


def _without_sum(site: ProductSite, added: Mapping[fx.Node, Any]) -> ProductSite:
    """The site as far as its product goes, where the norm behind it adds the residual."""
    return replace(site, residual=None, out=site.linears[0]) if site.norm in added else site
