"""Products, norms, quantizations and layouts in a rewritten block's graph: their modules, and where they are placed."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sparsefront_kernels.attention.encoder import select_features
from sparsefront_kernels.norm import (
    add_layer_norm_columns,
    add_layer_norm_columns_reference,
    layer_norm_columns,
    layer_norm_columns_reference,
)
from sparsefront_kernels.norm.rows import norm_rows, rows_unsupported_reason
from sparsefront_kernels.quantized.quantize import Quantized, quantize, quantize_activated
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.attention import ComputedOutputs
from sparsefront.inference.fusion.fused_product import FusedProduct, activation_in_layout
from sparsefront.inference.fusion.sites import (
    STREAM_NORMS,
    ProductSite,
    find_pairs,
    is_stream_norm,
    node_argument,
    read_name,
)


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
        alone = super().kernel_operands(x)
        if alone is None:
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
        return f"{self.kind}, eps={self.eps}, row_major" + ", quantized" * self.quantized


def _constant(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=False)


def _columns(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).t()


def _is_plain(x: Tensor) -> bool:
    return not x.is_cuda or x.dtype == torch.float64


class AllOutputs(nn.Module):
    """A product whose readers are not our attention: all its outputs, with bias."""

    index: Tensor
    bias: Tensor | None

    def __init__(self, product: FusedProduct, computed: ComputedOutputs) -> None:
        super().__init__()
        self.product = product
        self.register_buffer("index", computed.index, persistent=False)
        self.register_buffer("bias", computed.bias, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = select_features(self.product.without_epilogue(x), self.index)
        return y if self.bias is None else y + self.bias.to(y.dtype)


aten = torch.ops.aten


def copy_graph(graph: fx.Graph) -> fx.Graph:
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
        before = min(site.linears, key=list(graph.nodes).index) if len(site.linears) > 1 else site.out
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
    graph: fx.Graph, parameters: Mapping[str, torch.Tensor], added: Mapping[fx.Node, tuple[int, torch.Tensor | None]]
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
        if node.op != "call_function" or (kind := STREAM_NORMS.get(node.target)) is None or not _over_features(node):
            continue
        weight, bias, eps = _norm_arguments(parameters, node, kind)
        readers = [user for user in node.users if user.op == "call_module" and user.args[0] is node]
        low = [user for user in readers if _quantizes_x(modules[str(user.target)])]
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


def _over_features(node: fx.Node) -> bool:
    """Whether a norm is over the last dimension only."""
    shape = node.args[1]
    return isinstance(shape, Sequence) and len(shape) == 1 and "val" in node.meta


def _norm_arguments(
    parameters: Mapping[str, torch.Tensor], node: fx.Node, kind: str
) -> tuple[torch.Tensor | None, torch.Tensor | None, Any]:
    """Weight, bias and eps of a norm; eps is None where an RMSNorm uses PyTorch's default."""
    if kind == "rms_norm":
        return _parameter(parameters, node, 2), None, node.args[3] if len(node.args) > 3 else None
    vectors = _parameter(parameters, node, 2), _parameter(parameters, node, 3)
    return *vectors, node.args[4] if len(node.args) > 4 else 1e-5


def _quantizes_x(module: nn.Module) -> bool:
    product = product_of(module)
    return product is not None and product.quantizes_x


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


# A product quantizes its output, in its epilogue or with its activation, if only one low-precision product reads it.


class QuantizesOutput(nn.Module):
    """A product that quantizes its output for the next one."""

    def __init__(self, product: FusedProduct) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor | Quantized) -> Tensor | Quantized:
        """Quantized values [..., N] with their scales; unquantized where the product emulates its kernel."""
        return self.product(x) if self.product.emulates else self.product.run_quantized(x)


def quantizing_producers(
    sites: Mapping[str, ProductSite], products: Mapping[str, FusedProduct]
) -> dict[str, QuantizesOutput]:
    """Name of each product whose quantized output the next product accepts -> the module to call instead.

    Args:
        sites: name of the product -> its site in a graph.
        products: the same names -> products.
    """
    names = {site.layers: name for name, site in sites.items()}
    pairs = [(names[up.layers], names[down.layers]) for up, down in find_pairs(sites.values())]
    return {
        up: QuantizesOutput(products[up])
        for up, down in pairs
        if (scales := products[up].output_scales) is not None and products[down].takes(scales)
    }


# An activation that several products read is quantized once. Attention's output is quantized by our own kernel, since a compiler
# has nothing before it to fuse the quantization with.

VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.transpose.int,
    aten.permute.default,
    aten.contiguous.default,
    aten.clone.default,
    operator.getitem,
)


class Quantizes(nn.Module):
    """Quantizes [..., K] as a product that reads it would.

    Args:
        product: one of its readers.
        alone: whether a compiler has nothing to fuse it with.
    """

    def __init__(self, product: FusedProduct, *, alone: bool) -> None:
        super().__init__()
        self.precision, self.alone = product.precision, alone
        self.like = [product]  # in a list, so that it is not registered as a submodule

    def forward(self, x: Tensor) -> Quantized:
        rows = self.like[0].entered(x.reshape(-1, x.shape[-1]))
        if isinstance(rows, Quantized):
            quantized = rows
        elif self.alone:
            quantized = quantize_activated(rows, "none", self.precision)
        else:
            quantized = quantize(rows, self.precision)
        return Quantized(quantized.values.view(x.shape), quantized.scales)


def product_of(module: nn.Module) -> FusedProduct | None:
    """The product behind a module of a graph: itself, or that of a `QuantizesOutput` or `Quantizes`."""
    if isinstance(module, QuantizesOutput):
        return module.product
    if isinstance(module, Quantizes):
        return module.like[0]
    return module if isinstance(module, FusedProduct) else None


def place_quantizations(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> dict[str, Quantizes]:
    """Insert quantizations of activations that several products would quantize, and of attention's output.

    Args:
        graph: with calls of the products.
        modules: name of a product -> the module that is called.
    Returns:
        name -> new module, to add to those of the graph.
    """
    readers: dict[Any, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_module"):
        product = modules.get(str(node.target))
        product = product.product if isinstance(product, QuantizesOutput) else product
        if isinstance(product, FusedProduct) and product.quantizes_x:
            readers.setdefault((node.args[0], product.precision, product.x_scale), []).append(node)
    added: dict[str, Quantizes] = {}
    for (x, *_), nodes in readers.items():
        first = modules[str(nodes[0].target)]
        alone = _is_attention(x)
        if (len(nodes) == 1 and not alone) or isinstance(modules.get(str(x.target)), QuantizesOutput):
            continue
        name = f"quantize_{len(added)}"
        product = first.product if isinstance(first, QuantizesOutput) else first
        added[name] = Quantizes(product, alone=alone)  # type: ignore[arg-type]
        with graph.inserting_before(nodes[0]):
            called = graph.call_module(name, (x,))
        for node in nodes:
            node.update_arg(0, called)
    return added


def _is_attention(node: fx.Node) -> bool:
    """Whether a node is the output of scaled_dot_product_attention or our kernel, or a view of it."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return "scaled_dot_product" in str(node.target) or str(node.target).startswith("attention_")
