"""Attention in a block's graph, found by running its operators on small tensors, and our kernel in its place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sparsefront_kernels.attention import attend
from sparsefront_kernels.attention.encoder import unsupported_reason
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.sites import ProductSite, is_feature_major, node_argument, read_name

aten = torch.ops.aten

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


# Attention between three Linears, or one, and its reader.
#
# Which feature of which head an output of a Linear becomes is found by sending its number through the operators in between, so
# that any chain of views is understood; whatever else they do to other numbers, such as rotary embeddings, is not attention of
# this kind.

SDPA = aten.scaled_dot_product_attention.default
OPTIONS = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")  # after query, key and value


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """softmax(scale * Q Kᵀ + mask) V as nodes of a graph.

    Args:
        layers: the Linears that give Q, K and V, by their names in the block; they may be one.
        features: int64 [3, heads * d], the Linear's output that each feature is.
        mask: node that broadcasts to [B, heads, L, L], or None.
        out: last node that the attention replaces, [B, L, heads * d].
    """

    layers: tuple[str, ...]
    features: Tensor
    heads: int
    scale: float
    mask: fx.Node | None
    out: fx.Node


def find_attentions(
    graph: fx.Graph, sites: Iterable[ProductSite], tensors: Mapping[str, Tensor], device: torch.device
) -> list[AttentionSite]:
    """The attentions that our kernel computes on this device, in graph order; nobody else reads their Linears.

    Args:
        sites: Linears of the block, not joined.
        tensors: name -> parameters and buffers of the block outside of Linears.
    """
    plain = {site.out: site.layers[0] for site in sites if site.out is site.linears[0]}
    attentions = []
    for node in graph.find_nodes(op="call_function", target=SDPA):
        try:
            site = _attention_site(node, plain, tensors, device)
        except Exception:  # operators that fail on small tensors
            site = None
        attentions += [] if site is None else [site]
    return attentions


def _attention_site(
    node: fx.Node, plain: Mapping[fx.Node, str], tensors: Mapping[str, Tensor], device: torch.device
) -> AttentionSite | None:
    options: dict[str, Any] = dict(zip(OPTIONS, node.args[3:], strict=False)) | dict(node.kwargs)
    inputs = [node_argument(node, place) for place in range(3)]
    query, mask = inputs[0].meta["val"], options.get("attn_mask")
    if options.get("dropout_p") or options.get("is_causal") or options.get("enable_gqa") or query.dim() != 4:
        return None
    heads, d = query.shape[1], query.shape[3]
    if not isinstance(heads, int) or unsupported_reason(query.dtype, d, device) is not None:
        return None
    if any(str(part.meta["val"].shape) != str(query.shape) for part in inputs):  # keys of another sequence
        return None
    if mask is not None and mask.meta["val"].dtype not in (torch.bool, query.dtype):
        return None
    out = _join_heads(node, tensors)
    if out is None:
        return None
    linears, features = [], []
    for part in inputs:
        (linear,) = _linears_before(part)
        index = _feature_index(part, linear, tensors)
        if linear not in plain or index is None or not _leads_to(linear, node):
            return None
        if mask is not None and linear in _linears_before(mask):  # it would read outputs that only attention completes
            return None
        linears.append(plain[linear])
        features.append(index)
    scale = d**-0.5 if options.get("scale") is None else options["scale"]
    return AttentionSite(tuple(linears), torch.stack(features), heads, scale, mask, out) if scale > 0 else None


def _feature_index(part: fx.Node, linear: fx.Node, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """int64 [heads * d]: the output of the Linear [B, L, N] that is each feature of `part` [B, heads, L, d]; or None."""
    sizes: dict[str, int] = {}
    shape = _shape(linear, sizes)
    numbers = torch.arange(float(shape[-1])).expand(shape)
    index = _run(part, {linear: numbers}, sizes, tensors)[0, :, 0].long()
    return index.flatten() if _only_moves(linear, part, lambda x: x[..., index].transpose(1, 2), tensors) else None


def _join_heads(node: fx.Node, tensors: Mapping[str, Tensor]) -> fx.Node | None:
    """The view of attention's output in which the features of all heads are side by side, [B, L, heads * d]; or None."""
    end = node
    while end.meta["val"].dim() == 4:
        if len(end.users) != 1:
            return None
        (end,) = end.users
    return end if _only_moves(node, end, lambda x: x.transpose(1, 2).flatten(2), tensors) else None


def _only_moves(start: fx.Node, end: fx.Node, move: Callable[[Tensor], Tensor], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the operators in between do as `move` to values of any sign and size, and read no values of the block's inputs."""
    generator, sizes = torch.Generator().manual_seed(0), dict[str, int]()
    shape = _shape(start, sizes)
    values = torch.randint(-127, 128, shape, generator=generator).float()  # exact in 16 bits, with the factors
    values *= 2.0 ** torch.randint(-6, 7, shape, generator=generator)
    known: dict[fx.Node, Any] = {start: values}
    if not torch.equal(_run(end, known, sizes, tensors).float(), move(values)):
        return False
    readers = (node for node in known if node is not start and node.target is not aten.sym_size.int)
    return all(part.op != "placeholder" for node in readers for part in node.all_input_nodes)


def _leads_to(start: fx.Node, end: fx.Node) -> bool:
    """Whether all that is computed from a node is read by another one alone."""
    pending, seen = list(start.users), {end}
    while pending:
        node = pending.pop()
        if node.op == "output":
            return False
        if node not in seen:
            seen.add(node)
            pending += node.users
    return True


# Our kernel: row-major, or feature-major on the outputs that products compute.


@dataclass(frozen=True, eq=False)
class ComputedOutputs:
    """What a product before a feature-major attention leaves to it.

    Args:
        index: int32 [N], the place of each output among those that the product computes; -1: it is zero without bias.
        bias: [N], which the product does not add; or None.
    """

    index: Tensor
    bias: Tensor | None


class FusedAttention(nn.Module):
    """`attend` in a graph: q, k, v [B, L, F] of products and a mask -> [B, L, heads * d].

    Args:
        features, q_bias, v_bias, feature_major: as in `attend`.
    """

    features: Tensor | None
    q_bias: Tensor | None
    v_bias: Tensor | None

    def __init__(
        self,
        heads: int,
        scale: float,
        features: Tensor | None = None,
        q_bias: Tensor | None = None,
        v_bias: Tensor | None = None,
        *,
        feature_major: bool,
    ) -> None:
        super().__init__()
        self.heads, self.scale, self.feature_major = heads, scale, feature_major
        for name, tensor in (("features", features), ("q_bias", q_bias), ("v_bias", v_bias)):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
        biases = self.q_bias, self.v_bias
        return attend(q, k, v, self.features, self.heads, self.scale, mask, *biases, self.feature_major)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, {'feature' if self.feature_major else 'row'}_major"


def place_attentions(
    graph: fx.Graph,
    attentions: Sequence[AttentionSite],
    products: Mapping[str, ProductSite],
    computed: Mapping[tuple[str, ...], ComputedOutputs],
    device: torch.device,
) -> dict[str, FusedAttention]:
    """Replace attentions by calls of our kernel, after products are placed.

    Args:
        products: name of the module -> its site.
        computed: names of a product's Linears -> what it leaves to attention, for feature-major blocks; else empty.
        device: of the products.
    Returns:
        name of the module -> attention.
    """
    modules: dict[str, FusedAttention] = {}
    calls = {node.target: node for node in graph.find_nodes(op="call_module")}
    place_of = {  # Linear -> names of its product's Linears, the product, and its first output there
        layer: (site.layers, calls[name], sum(site.rows[:place]))
        for name, site in products.items()
        for place, layer in enumerate(site.layers)
    }
    for attention in attentions:
        places = [place_of[layer] for layer in attention.layers]
        parts = [product for _, product, _ in places]
        index = [own.to(device) + first for own, (*_, first) in zip(attention.features, places, strict=True)]
        features: Tensor | None = None
        biases: list[Tensor | None] = [None, None, None]
        with graph.inserting_before(attention.out):
            if computed:
                outputs = [computed[layers] for layers, *_ in places]
                features = torch.stack([part.index[own] for part, own in zip(outputs, index, strict=True)])
                biases = [
                    None if part.bias is None else part.bias[own] for part, own in zip(outputs, index, strict=True)
                ]
            elif all(bool((own.diff() == 1).all()) for own in index):
                slices = [(part, -1, int(own[0]), int(own[-1]) + 1) for part, own in zip(parts, index, strict=True)]
                parts = [graph.call_function(aten.slice.Tensor, arguments) for arguments in slices]
            else:
                features = torch.stack(index).int()
            name = f"attention_{len(modules)}"
            modules[name] = FusedAttention(
                attention.heads, attention.scale, features, biases[0], biases[2], feature_major=bool(computed)
            )
            called = graph.call_module(name, (*parts, attention.mask))
            called.meta = dict(attention.out.meta)
        attention.out.replace_all_uses_with(called)
    return modules
