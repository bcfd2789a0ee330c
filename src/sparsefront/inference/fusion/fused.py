"""Rewritten blocks: graphs of fused products and norms, feature-major or row-major."""

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Self

import torch
from sparsefront_kernels.norm import (
    add_layer_norm_columns,
    add_layer_norm_columns_reference,
    layer_norm_columns,
    layer_norm_columns_reference,
)
from sparsefront_kernels.norm.rows import norm_rows, rows_unsupported_reason
from sparsefront_kernels.quantized.quantize import Quantized
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsefront.inference.fusion.calls import Key, Unfusable, call_key, call_tensors, unsupported_type
from sparsefront.inference.fusion.capture import Captured, GraphSizes, capture
from sparsefront.inference.fusion.fused_product import FusedProduct, activation_in_layout
from sparsefront.inference.fusion.original_code import Layers, original_code
from sparsefront.inference.fusion.plan import ALL_PARTS, FusionParts
from sparsefront.inference.fusion.quantized_activations import (
    Quantizes,
    place_quantizations,
    product_of,
    quantizing_producers,
)
from sparsefront.inference.fusion.sites import ProductSite, find_sites, is_stream_norm, merged, node_argument, read_name

# LayerNorm in a feature-major residual stream.


class FusedNorm(nn.Module):
    """LayerNorm over the last dimension of [..., d] with any strides; the output is feature-major."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = _constant(weight), _constant(bias)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        run = layer_norm_columns_reference if _is_plain(x) else layer_norm_columns
        return run(_columns(x), self.weight, self.bias, self.eps).t().view(x.shape)

    def kernel_operands(self, x: Tensor) -> dict[str, Any] | None:
        """Operands of `norm.layer_norm` for this call; None where plain PyTorch runs it."""
        if _is_plain(x):
            return None
        vectors = {"weight": self.weight, "bias": self.bias, "x_bias": None}
        return {"x": _columns(x), **vectors, "residual": None, "sums": None}

    def extra_repr(self) -> str:
        return f"eps={self.eps}, feature_major"


class FusedResidualNorm(FusedNorm):
    """LayerNorm of x + x_bias + residual, where x is a product's output: one kernel adds and normalizes.

    Args:
        x_bias: [d], of the product; or None.
        keep_sums: whether other nodes read the sum, too.
    """

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, eps: float, *, x_bias: Tensor | None, keep_sums: bool
    ) -> None:
        super().__init__(weight, bias, eps)
        self.x_bias, self.keep_sums = _constant(x_bias), keep_sums

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The norm and the sum; the sum is undefined without keep_sums."""
        operands = _columns(x), self.x_bias, _columns(residual.to(x.dtype)), self.weight, self.bias, self.eps
        if _is_plain(x):
            y, sums = add_layer_norm_columns_reference(*operands)
        else:
            y, sums = add_layer_norm_columns(*operands, self.keep_sums)
        return y.t().view(x.shape), sums.t().view(x.shape) if self.keep_sums else sums

    def kernel_operands(self, x: Tensor, residual: Tensor) -> dict[str, Any] | None:  # type: ignore[override]
        if (alone := super().kernel_operands(x)) is None:
            return None
        added = {"x_bias": self.x_bias, "residual": _columns(residual.to(x.dtype))}
        return alone | added | {"sums": alone["x"] if self.keep_sums else None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, adds the residual"


# LayerNorm and RMSNorm in a row-major residual stream: one kernel adds, normalizes and quantizes.


class FusedRowNorm(nn.Module):
    """LayerNorm or RMSNorm over the last dimension of [..., d], of x or of x + x_bias + residual, by `norm_rows`.

    Args:
        kind: "layer_norm" or "rms_norm".
        adds: whether a residual is added.
        x_bias: [d], of the product before the norm; or None.
        keep_norm, keep_sums, quantized: which outputs are read: the norm, the sum, the norm in e4m3.
    """

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        *,
        kind: str = "layer_norm",
        adds: bool = False,
        x_bias: Tensor | None = None,
        keep_norm: bool = True,
        keep_sums: bool = False,
        quantized: bool = False,
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.x_bias = _constant(weight), _constant(bias), _constant(x_bias)
        self.eps, self.kind, self.adds = eps, kind, adds
        self.keep_norm, self.keep_sums, self.quantized = keep_norm, keep_sums, quantized

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor, Quantized]:
        """The norm, the sum and the quantized norm; outputs that are not read are undefined."""
        rows = x.reshape(-1, x.shape[-1])
        added = None if residual is None else residual.to(x.dtype).reshape(rows.shape)
        asked = self.keep_norm, self.keep_sums, self.quantized
        outputs = norm_rows(rows, self.x_bias, added, self.weight, self.bias, self.eps, self.kind, *asked)
        y, sums, values = (
            part.view(x.shape) if is_read else part for part, is_read in zip(outputs[:3], asked, strict=True)
        )
        return y, sums, Quantized(values, outputs[3])

    def extra_repr(self) -> str:
        return f"{self.kind}, eps={self.eps}, row_major" + ", quantised" * self.quantized


def _constant(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=False)


def _columns(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).t()


def _is_plain(x: Tensor) -> bool:
    return not x.is_cuda or x.dtype == torch.float64


# Replace operators of a captured graph by fused products and norms.

aten = torch.ops.aten


def copied(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph."""
    other = fx.Graph()
    outputs = other.graph_copy(graph, {})
    other.output(outputs)
    return other


def remove_unread(graph: fx.Graph) -> None:
    """Erase nodes without users; captured graphs have no in-place operators."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)


def place_products(graph: fx.Graph, products: Mapping[str, ProductSite]) -> None:
    """Replace Linears and their epilogues by calls of products.

    Args:
        products: name of the module -> its site in this graph, without a residual that the norm after it adds.
    """
    now: dict[fx.Node, fx.Node] = {}  # old -> new node, since sites refer to nodes of the original graph
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
    """Each Linear of a joined product -> the slice with its outputs."""
    parts, start = {}, 0
    for node, count in zip(site.linears, site.rows, strict=True):
        parts[node] = graph.call_function(aten.slice.Tensor, (called, -1, start, start + count))
        parts[node].meta = dict(node.meta)
        start += count
    return parts


def place_norms(
    graph: fx.Graph,
    parameters: Mapping[str, torch.Tensor],
    added: Mapping[fx.Node, tuple[int, torch.Tensor | None]],
) -> dict[str, FusedNorm]:
    """Replace LayerNorms of the residual stream by calls of feature-major norms.

    Args:
        parameters: of the block, by name.
        added: norm that adds a residual to a product -> index of the residual in the sum's arguments, and the product's bias.
    Returns:
        name of the module -> norm.
    """
    norms: dict[str, FusedNorm] = {}
    for node in graph.find_nodes(op="call_function", target=aten.layer_norm.default):
        if not is_stream_norm(node):
            continue
        weight, bias, eps = _norm_arguments(parameters, node, "layer_norm")
        name = f"norm_{len(norms)}"
        if node in added:
            place, x_bias = added[node]
            keep_sums = len(node_argument(node, 0).users) > 1
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
    """Replace a sum and its norm by one call, which also returns the sum for its other readers.

    Args:
        place: index of the residual in the sum's arguments.
    """
    total = node_argument(norm, 0)
    sums, residual = total.args[1 - place], total.args[place]
    with graph.inserting_after(total):
        called = graph.call_module(name, (sums, residual))
    with graph.inserting_after(called):
        normed = graph.call_function(operator.getitem, (called, 0))
        sum_node = graph.call_function(operator.getitem, (called, 1))
    normed.meta, sum_node.meta = dict(norm.meta), dict(total.meta)
    norm.replace_all_uses_with(normed)
    total.replace_all_uses_with(sum_node, delete_user_cb=lambda user: user is not norm)


def place_row_norms(
    graph: fx.Graph,
    parameters: Mapping[str, torch.Tensor],
    added: Mapping[fx.Node, tuple[int, torch.Tensor | None]],
    modules: Mapping[str, nn.Module],
) -> dict[str, FusedRowNorm]:
    """Replace norms by calls of row-major norms if their kernel supports them, or if they have to add a residual.

    Args:
        parameters, added: as in `place_norms`.
        modules: name -> module of the graph, products and quantizations included.
    Returns:
        name of the module -> norm.
    """
    norms: dict[str, FusedRowNorm] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or (kind := _ROW_NORMS.get(node.target)) is None or not _over_features(node):
            continue
        weight, bias, eps = _norm_arguments(parameters, node, kind)
        readers = [user for user in node.users if user.op == "call_module" and user.args[0] is node]
        low = [user for user in readers if _is_low(modules[str(user.target)])]
        quantized = bool(low) and all(_reads_rows_in_e4m3(modules[str(user.target)]) for user in low)
        if node not in added and (
            (low and not quantized)  # a compiler fuses the norm with its quantization
            or weight is None
            or eps is None
            or rows_unsupported_reason(len(weight), node.meta["val"].dtype, weight.device, weight=weight, bias=bias)
        ):
            continue
        name, total = f"row_norm_{len(norms)}", node_argument(node, 0)
        place, x_bias = added.get(node, (None, None))
        operands = (total,) if place is None else (total.args[1 - place], total.args[place])
        with graph.inserting_before(node if place is None else total.next):
            called = graph.call_module(name, operands)
            normed, sums, in_e4m3 = (graph.call_function(operator.getitem, (called, part)) for part in range(3))
        normed.meta, sums.meta = dict(node.meta), dict(total.meta)
        for user in low if quantized else ():
            _read_quantized(graph, user, in_e4m3, modules)
        node.replace_all_uses_with(normed)
        graph.erase_node(node)
        if place is not None:
            total.replace_all_uses_with(sums)
        output_flags = {
            "keep_norm": bool(normed.users),
            "keep_sums": bool(sums.users),
            "quantized": bool(in_e4m3.users),
        }
        norms[name] = FusedRowNorm(weight, bias, eps, kind=kind, adds=place is not None, x_bias=x_bias, **output_flags)
    remove_unread(graph)
    return norms


_ROW_NORMS = {aten.layer_norm.default: "layer_norm", aten.rms_norm.default: "rms_norm"}


def _over_features(node: fx.Node) -> bool:
    """Whether a norm is over the last dimension only."""
    return isinstance(shape := node.args[1], Sequence) and len(shape) == 1 and "val" in node.meta


def _norm_arguments(
    parameters: Mapping[str, torch.Tensor], node: fx.Node, kind: str
) -> tuple[torch.Tensor | None, torch.Tensor | None, Any]:
    """Weight, bias and eps of a norm; eps is None where an RMSNorm uses PyTorch's default."""
    if kind == "rms_norm":
        return _parameter(parameters, node, 2), None, node.args[3] if len(node.args) > 3 else None
    vectors = _parameter(parameters, node, 2), _parameter(parameters, node, 3)
    return *vectors, node.args[4] if len(node.args) > 4 else 1e-5


def _is_low(module: nn.Module) -> bool:
    product = product_of(module)
    return product is not None and product.precision != "none"


def _reads_rows_in_e4m3(module: nn.Module) -> bool:
    """Whether a product, or a shared quantization for several, accepts e4m3 with a scale per row."""
    product = product_of(module)
    return product is not None and product.takes("row")


def _read_quantized(graph: fx.Graph, user: fx.Node, in_e4m3: fx.Node, modules: Mapping[str, nn.Module]) -> None:
    """Let a product, or all readers of a shared quantization, read the norm's e4m3 output."""
    if isinstance(modules[str(user.target)], Quantizes):
        user.replace_all_uses_with(in_e4m3)
        graph.erase_node(user)
    else:
        user.update_arg(0, in_e4m3)


def place_layouts(graph: fx.Graph, modules: Sequence[str], *, row_major_exit: bool) -> None:
    """Convert inputs of the residual stream to feature-major layout and, with `row_major_exit`, outputs back to row-major."""
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
            output.args = fx.map_arg(output.args, lambda node: _to_row_major(graph, node))


def _to_row_major(graph: fx.Graph, node: fx.Node) -> fx.Node:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or not value.is_floating_point():
        return node
    return _in_layout(graph, node, feature_major=False)


def _in_layout(graph: fx.Graph, node: fx.Node, *, feature_major: bool) -> fx.Node:
    """Insert `activation_in_layout` as a leaf: it depends on strides, so that re-tracing a loaded graph must not inline it."""
    called = graph.call_function(activation_in_layout, (node,), {"feature_major": feature_major})
    called.meta = {**node.meta, "is_wrapped": True}  # as fx.wrap
    return called


def _parameter(parameters: Mapping[str, torch.Tensor], node: fx.Node, place: int) -> torch.Tensor | None:
    if len(node.args) <= place or node.args[place] is None:
        return None
    return parameters[read_name(node_argument(node, place))]


def _first(graph: fx.Graph, nodes: Sequence[fx.Node]) -> fx.Node:
    return min(nodes, key=list(graph.nodes).index)


log = logging.getLogger(__name__)
MOST_GRAPHS = 16  # per block, for blocks with one graph per image size; further sizes run the original code


class FusedBlock(nn.Module):
    """Replaces a block, with the same signature.

    A graph supports any batch size and length that the block treats alike. Calls of another kind (with another mask, or none)
    are captured from the block's original code when they occur. Calls that no graph supports, such as with a KV cache, run the
    original code with the products as its Linears.

    Args:
        bare: the block without weights, from `capture.skeleton`.
        products: names of the Linears of a product -> the product; covers all Linears that the block calls.
        kept: name -> the block's other parameters and buffers.
        feature_major: whether the residual stream is feature-major; else row-major.
        row_major_exit: whether to convert the output to row-major, for a reader that is no feature-major block.
        parts: with which the products were made.
        norm_biases: names of the Linears of a product whose residual the next norm adds -> the bias that the norm adds too;
            None where the product adds it.
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
        self._bare = [bare]  # in a list, so that its meta tensors are not registered here
        # the original code, made when a call needs it; in a list, since its tensors are registered here already
        self._original: list[nn.Module] = []
        self._unserved: set[Key] = set()
        self.original_code_is_right = True  # until a check fails
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

    def add_call(self, key: Key, captured: Captured) -> None:
        """Add the graph of one more kind of call.

        Raises:
            Unfusable: the graph's Linears do not match the products.
        """
        graph = copied(captured.graph)
        sites = dict(zip((f"product_{place}" for place in range(len(self._layers))), self._sites(graph), strict=True))
        added = self._added_by_norms(sites.values())
        products = dict(zip(sites, self._products(), strict=True))
        modules: dict[str, Any] = products | quantizing_producers(sites, products)
        place_products(graph, {name: _without_sum(site, added) for name, site in sites.items()})
        modules |= place_quantizations(graph, modules)
        tensors = self._kept()
        if self.feature_major:
            modules |= place_norms(graph, tensors, added)
            place_layouts(graph, tuple(modules), row_major_exit=self.row_major_exit)
        else:
            modules |= place_row_norms(graph, tensors, added, modules)
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
        if (kind := unsupported_type(args, kwargs)) is not None:
            return self._run_original_code(f"is called with a {kind}", args, kwargs)
        key = call_key(args, kwargs)
        tensors = call_tensors(args, kwargs)
        place = self._graph_for(key, tensors)
        if place is None:
            reason = self._capture(key, args, kwargs)
            if reason is not None:
                return self._run_original_code(reason, args, kwargs)
            place = len(self.graphs) - 1
        outputs = self.graphs[place](*tensors)
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
        self._original[:] = [original_code(self._bare[0], self.product_of, self._kept(), biases)]

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

    def _kept(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"kept_{place}") for place, name in enumerate(self._kept_names)}

    def _added_by_norms(self, sites: Iterable[ProductSite]) -> dict[fx.Node, tuple[int, Tensor | None]]:
        """Norm that adds a residual -> index of the residual in the sum's arguments, and the product's bias.

        Raises:
            Unfusable: no norm follows a product whose residual a norm should add.
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
        """The site of each product, in the products' order."""
        every = find_sites(graph, self._bare[0], self._parts)
        site_by_layer = {site.layers[0]: site for site in every}
        covered = {name for layers in self._layers for name in layers}
        if len(every) != len(site_by_layer) or set(site_by_layer) != covered:
            raise Unfusable("calls its Linears otherwise than its products are made for")
        sites = [
            site_by_layer[layers[0]] if len(layers) == 1 else merged([site_by_layer[name] for name in layers])
            for layers in self._layers
        ]
        for site, product in zip(sites, self.products, strict=True):
            if site.activation != product.activation:
                raise Unfusable(f"follows {site.layers[0]} by {site.activation} in one call and by another in others")
        return sites


@cache
def _log_once(block: str, reason: str) -> None:
    log.info("a rewritten %s %s: its own code runs, around its products", block, reason)


def _without_sum(site: ProductSite, added: Mapping[fx.Node, Any]) -> ProductSite:
    """The site without its residual if the norm after it adds that."""
    if site.norm not in added:
        return site
    return replace(site, residual=None, out=node_argument(site.out, 1 - site.out.args.index(site.residual)))
