"""Which layers share whole attention heads and hidden features: their ties, from names, shapes and traced graphs.

A head is a set of rows of query, key and value and of columns of the output projection. A hidden feature is a row of the
layer that computes it and a column of the layer that reads it; so is a channel inside a residual block of convolutions.
"""

import copy
import inspect
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

Shapes = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Tie:
    """Units (heads, hidden features, channels) that are kept or pruned in several layers at once.

    Args:
        outputs: layers that compute the units -> sizes of their segments: of consecutive outputs, the first count * sizes[0]
            belong to the units in turn, sizes[0] to each, and so on. (d, d, d) is a fused query, key and value.
        inputs: layers that read them -> the same of their inputs (of one tap of a convolution).
        count: number of units.
        attention: module that stores the number of heads; None for features and channels.
        heads: path of that attribute; empty if it has none.
        of_unit: heads of a unit: more than one where they share a key and a value.
        head_dim: size of a head.
        between: batch norms and depthwise convolutions between outputs and inputs.
        tables: parameters of the attention with a column for each head.
        parts: other parameters and buffers with an entry for each unit -> the dims with them.
        norms: those whose statistics are over the units -> the dim of their input with them, counted from the end.
    """

    outputs: Mapping[str, tuple[int, ...]]
    inputs: Mapping[str, tuple[int, ...]]
    count: int
    attention: str | None = None
    heads: str = ""
    of_unit: int = 1
    head_dim: int = 0
    between: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    norms: Mapping[str, int] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[str, ...]:
        return *self.outputs, *self.inputs

    @property
    def reader(self) -> str:
        """The first layer that reads the units: a name for the tie in files."""
        return next(iter(self.inputs))

    def step(self, multiple: int) -> int:
        """Units whose outputs are together a multiple of this number in each layer."""
        sides = (*self.outputs.values(), *self.inputs.values())
        return math.lcm(*(multiple // math.gcd(multiple, size) for sizes in sides for size in sizes))

    def weights_of_unit(self, shapes: Shapes) -> int:
        """Number of weights in one unit; `shapes`: layer -> [N, K]."""
        return sum(math.prod(shapes[layer]) for layer in self.layers) // self.count


def features_of(units: Tensor, sizes: Sequence[int]) -> Tensor:
    """The bool [features] of units, bool [count], in segments of these sizes."""
    return torch.cat([units.repeat_interleave(size) for size in sizes])


# Attentions, recognized by the names of their projections; everything else about them follows from shapes.


class _Attention(NamedTuple):
    """Args:
    outputs: paths below a module: the projections (one if they are fused).
    inputs: of the output projection.
    owner: of the module with the settings.
    positions: of more projections like the query's, of relative positions, where there are any.
    after: of a norm of the output.
    heads: where `forward` reads the number of heads if not from the owner itself.
    """

    outputs: tuple[str, ...]
    inputs: str
    owner: str = ""
    positions: tuple[str, ...] = ()
    after: str | None = None
    heads: str = ""


ATTENTIONS = (
    _Attention(("self.query", "self.key", "self.value"), "output.dense", "self"),  # BERT, RoBERTa
    _Attention(("query", "key", "value"), "dense", after="LayerNorm"),  # ALBERT
    _Attention(
        ("self.query_proj", "self.key_proj", "self.value_proj"),
        "output.dense",
        "self",
        positions=("self.pos_key_proj", "self.pos_query_proj"),
    ),  # DeBERTa
    _Attention(("attention.query", "attention.key", "attention.value"), "output.dense", "attention"),
    _Attention(("q", "k", "v"), "o"),  # MPNet
    _Attention(("q_lin", "k_lin", "v_lin"), "out_lin"),  # DistilBERT
    *(_Attention(("q_proj", "k_proj", "v_proj"), out) for out in ("o_proj", "out_proj", "dense")),  # ViT, OPT, Phi
    _Attention(("q", "k", "v"), "out"),  # our own
    _Attention(("c_attn",), "c_proj"),  # GPT-2
    _Attention(("qkv_proj",), "o_proj", heads="config.num_attention_heads"),  # Phi-3
    *(_Attention((fused,), out) for fused, out in (("qkv", "proj"), ("Wqkv", "Wo"))),  # timm, SAM, ModernBERT
)
COUNTS_OF_HEADS = ("num_attention_heads", "num_heads", "n_heads", "heads")
SIZES_OF_HEADS = ("attention_head_size", "head_dim", "key_value_proj_dim")
TABLES = ("relative_position_bias_table", "relative_position_bias.relative_position_bias_table")
# In these packages, attention reads only these attributes from the module and everything else from tensor shapes.
PACKAGES_OF_ATTENTIONS = ("transformers", "sparsefront", "timm")
FEED_FORWARDS = (
    (("intermediate.dense",), "output.dense"),
    (("lin1",), "lin2"),
    (("fc1",), "fc2"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("w1", "w3"), "w2"),  # an expert of Mixtral
    (("wi",), "wo"),  # T5
    (("wi_0", "wi_1"), "wo"),
    (("ffn",), "ffn_output"),  # ALBERT
)


def find_ties(net: nn.Module, layers: Iterable[str]) -> list[Tie]:
    """Find the ties among these layers of a network; a tie counts only if it contains no other layer.

    Heads of attentions first, then features of feed-forward blocks, then what the graphs of modules show (`_trace_ties`).

    Args:
        net: may be on the meta device: only names and shapes are read.
        layers: names of Linear and Conv2d layers.
    """
    among = set(layers)
    modules = dict(net.named_modules())
    users = Counter(id(own) for module in modules.values() for own in module._parameters.values())
    ties: list[Tie] = []
    makes: set[str] = set()
    reads: set[str] = set()
    by_name = (tie for name, module in modules.items() for tie in (*_heads(name, module), *_features(name, module)))
    for tie in chain(by_name, _trace_ties("", net)):
        shared = any(users[id(modules[layer]._parameters.get("weight"))] > 1 for layer in tie.layers)
        if shared or not among.issuperset(tie.layers) or makes & set(tie.outputs) or reads & set(tie.inputs):
            continue
        makes.update(tie.outputs)
        reads.update(tie.inputs)
        ties.append(tie)
    return ties


def _heads(name: str, module: nn.Module) -> Iterator[Tie]:
    if type(module).__module__.partition(".")[0] not in PACKAGES_OF_ATTENTIONS:
        return
    for kind in ATTENTIONS:
        owner = _part(module, kind.owner)
        positions = [path for path in kind.positions if _part(module, path) is not None]
        projections = [_part(module, path) for path in (*kind.outputs, *positions, kind.inputs)]
        if owner is None or not all(isinstance(layer, nn.Linear) for layer in projections):
            continue
        *made, read = (layer.weight.shape for layer in projections)  # type: ignore[union-attr]
        attribute = kind.heads or next((one for one in COUNTS_OF_HEADS if isinstance(vars(owner).get(one), int)), "")
        size = next((own for one in SIZES_OF_HEADS if isinstance(own := getattr(owner, one, None), int)), 0)
        heads, fused = operator.attrgetter(attribute)(owner) if attribute else 0, len(kind.outputs) == 1
        width = read[1]
        size = size or (width // heads if heads else 0)
        if not size or width % size:
            continue
        units = (made[0][0] - width) // 2 // size if fused else made[1][0] // size  # of keys and values
        of_unit = width // size // units if units > 0 else 0
        sizes = ((of_unit * size,), (size,), (size,)) if not fused else ((of_unit * size, size, size),)
        sizes += ((of_unit * size,),) * len(positions)
        fits = [shape[0] == units * sum(own) for shape, own in zip(made, sizes, strict=True)]
        tables = tuple(one for one in TABLES if getattr(_parameter(owner, one), "shape", (0,))[-1] == units)
        if units < 2 or not all(fits) or width != units * of_unit * size or heads not in (0, units * of_unit):
            continue
        projections += [] if kind.after is None else [_part(module, kind.after)]
        if _has_nothing_per_head(owner, projections, size, tables, relative=bool(positions)):
            outputs = {_below(name, path): own for path, own in zip((*kind.outputs, *positions), sizes, strict=True)}
            inputs = {_below(name, kind.inputs): (of_unit * size,)}
            attention = _below(name, kind.owner)
            yield Tie(outputs, inputs, units, attention, attribute, of_unit, size, tables=tables)
            return


def _has_nothing_per_head(
    owner: nn.Module, projections: Sequence[nn.Module | None], size: int, tables: Collection[str], *, relative: bool
) -> bool:
    """Whether only the projections have weights, but for norms over the `size` features of a head and `tables`, and `forward`
    takes no relative positions, whose bias would be per head, unless they are projected (`relative`). The `position_bias` of
    MPNet and T5 is allowed: `pruning.narrow` selects its heads, and the table that it comes from stays whole.
    """
    biased = "position_bias" in inspect.signature(type(owner).forward).parameters and hasattr(owner, "compute_bias")
    shared = getattr(owner, "relative_attention_bias", None) if biased else None
    others = [part for part in owner.children() if not any(part is one for one in (*projections, shared))]
    own = [
        parameter
        for key, parameter in owner._parameters.items()
        if parameter is not None
        and key not in tables
        and not (key.startswith("rel_pos") and parameter.shape[-1] == size)
    ]
    with_heads = {id(_parameter(owner, table)) for table in tables}
    own += [
        parameter
        for part in others
        for parameter in part.parameters()
        if parameter.numel() != size and id(parameter) not in with_heads
    ]
    forward = inspect.signature(type(owner).forward).parameters
    gives_bias = "has_relative_attention_bias" in vars(owner) and not biased
    return not own and not gives_bias and (relative or not any(argument.startswith("rel") for argument in forward))


def _features(name: str, module: nn.Module) -> Iterator[Tie]:
    encoder = isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    for outputs, inputs in ((("linear1",), "linear2"),) if encoder else FEED_FORWARDS:
        made, read = [_part(module, path) for path in outputs], _part(module, inputs)
        if not all(isinstance(layer, nn.Linear) and _is_plain_layer(layer) for layer in (*made, read)):
            continue
        beside = _part(module, outputs[0].rpartition(".")[0])
        assert beside is not None and isinstance(read, nn.Linear)
        width, hidden = read.in_features, read.out_features
        others = [part for part in beside.children() if not any(part is layer for layer in (*made, read))]
        sides = {side for part in others for parameter in part.parameters() for side in parameter.shape}
        if not encoder and (width in sides or (sides and width == hidden)):
            continue  # for example a norm over the hidden features
        if {layer.out_features for layer in made} == {width}:  # type: ignore[union-attr]
            made_names, read_name = (_below(name, path) for path in outputs), _below(name, inputs)
            yield Tie(dict.fromkeys(made_names, (1,)), {read_name: (1,)}, width)


def _part(module: nn.Module | None, path: str) -> nn.Module | None:
    for step in path.split(".") if path else ():
        module = None if module is None else module._modules.get(step)
    return module


def _parameter(module: nn.Module, path: str) -> Tensor | None:
    parent, _, own = path.rpartition(".")
    part = _part(module, parent)
    return None if part is None else part._parameters.get(own)


def _below(name: str, path: str) -> str:
    return f"{name}.{path}".strip(".")


# What the graph of a module shows: layers whose outputs reach only elementwise operations and other layers.

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Hardswish, nn.Hardsigmoid, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout2d),
)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
UNARY = frozenset(
    "relu relu_ relu6 gelu silu mish elu leaky_relu hardswish hardsigmoid tanh sigmoid softplus dropout dropout2d abs square "
    "neg pow contiguous clone float to stochastic_depth".split()
)
BINARY = frozenset("add iadd mul imul sub isub div truediv".split())
CONCATENATION = frozenset(("cat", "concat"))
POOLING = frozenset("max_pool2d avg_pool2d adaptive_avg_pool2d boolean_dispatch interpolate".split())


class _Component:
    """Layers that compute and read the same units; `valid` until something else reads them."""

    def __init__(self, layer: str, count: int, *, pixels: bool) -> None:
        self.outputs: dict[str, tuple[int, ...]] = {layer: (1,)}
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.between: list[str] = []
        self.count, self.pixels, self.valid = count, pixels, True

    def join(self, other: "_Component") -> None:
        """Take over the layers of a component whose units are combined with these one by one."""
        self.valid &= other.valid and other.count == self.count and other.pixels == self.pixels
        self.valid &= not self.inputs.keys() & other.inputs.keys()
        self.outputs |= other.outputs
        self.inputs |= other.inputs
        self.between += other.between


def _trace_ties(name: str, module: nn.Module) -> Iterator[Tie]:
    """The ties in the graph of a module or, where it cannot be traced (data-dependent control flow), of its children."""
    if sum(isinstance(part, nn.Linear | nn.Conv2d) for part in module.modules()) < 2:
        return
    graph = _graph_of(module)
    if graph is None:
        for child, part in module.named_children():
            yield from _trace_ties(_below(name, child), part)
        return
    for component in _components(module, graph):
        if component.valid and component.inputs and component.count > 1:
            outputs, inputs = (
                {_below(name, layer): sizes for layer, sizes in side.items()}
                for side in (component.outputs, component.inputs)
            )
            between = tuple(_below(name, part) for part in component.between)
            yield Tie(outputs, inputs, component.count, between=between)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear | nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def _graph_of(module: nn.Module) -> fx.Graph | None:
    """The operations of a forward with symbolic inputs; None where they depend on values or it is a layer itself."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return None
    tensors = [*module.parameters(), *module.buffers()]
    try:
        # a copy, since a trace may set attributes
        return _Tracer().trace(copy.deepcopy(module, {id(tensor): tensor for tensor in tensors}))
    except Exception:  # whatever the module's code raises when it is copied or meets symbolic values
        return None


def _components(module: nn.Module, graph: fx.Graph) -> list[_Component]:
    of_node: dict[fx.Node, _Component] = {}
    repeats: dict[
        fx.Node, int
    ] = {}  # a concatenation of several outputs with the same units one after the other -> how many
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")

    def lose(node: fx.Node) -> None:
        for read in node.all_input_nodes:
            if read in of_node:
                of_node[read].valid = False

    def unite(one: _Component, other: _Component) -> _Component:
        if one is not other:
            one.join(other)
            of_node.update({node: one for node, component in of_node.items() if component is other})
        return one

    for node in graph.nodes:
        source = of_node.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        repeat = repeats.get(node.args[0], 1) if source is not None else 1
        alone = len({read for read in node.all_input_nodes if not _is_size(read)}) == 1
        if _is_size(node):
            continue
        if node.op == "call_module":
            part: Any = module.get_submodule(str(node.target))
            passes = _passes(part, source) if source is not None and alone else ""
            passes = "" if repeat > 1 and passes == "between" else passes
            if passes == "between":
                assert source is not None
                source.valid &= calls[node.target] == 1
                source.between.append(str(node.target))
            if passes:
                of_node[node] = source  # type: ignore[assignment]  # not None
                repeats[node] = repeat
            elif _is_plain_layer(part) and alone and calls[node.target] == 1:
                if source is not None:
                    width, units = part.weight.shape[1], source.count * repeat
                    source.valid &= width % units == 0 and str(node.target) not in source.inputs
                    source.valid &= width == units or (source.pixels and isinstance(part, nn.Linear))
                    source.inputs[str(node.target)] = (width // units,) * repeat
                of_node[node] = _Component(str(node.target), len(part.weight), pixels=isinstance(part, nn.Conv2d))
            else:
                lose(node)
            continue
        kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        numbers = all(isinstance(one, int | float | fx.Node) for one in node.args)
        if node.op not in ("call_function", "call_method") or source is None and kind not in BINARY | CONCATENATION:
            lose(node)
        elif kind in CONCATENATION and (parts := _concatenated(node, of_node, repeats)):
            first = of_node[parts[0]]
            for read in parts[1:]:
                first = unite(first, of_node[read])
            of_node[node], repeats[node] = first, len(parts)
        elif repeat > 1 and (not alone or kind in ("chunk", "getitem")):
            lose(node)
        elif kind in BINARY and numbers and all(read in of_node for read in node.all_input_nodes):
            first, *others = (of_node[read] for read in node.all_input_nodes)
            for other in others:
                first = unite(first, other)
            of_node[node] = first
        elif (
            source is not None
            and alone
            and (_is_unary(node, kind) or (source.pixels and (kind in POOLING or _is_flat(node, kind))))
        ):
            of_node[node], repeats[node] = source, repeat
        elif source is not None and kind == "chunk" and _is_layer_output(node, source):
            chunks = int(node.args[1])
            source.valid &= source.count % chunks == 0
            source.count, source.outputs = source.count // chunks, dict.fromkeys(source.outputs, (1,) * chunks)
            of_node[node] = source
        elif kind == "getitem" and source is not None and getattr(node.args[0], "target", "") in ("chunk", torch.chunk):
            of_node[node] = source
        else:
            lose(node)
    return list(dict.fromkeys(of_node.values()))


def _concatenated(
    node: fx.Node, of_node: Mapping[fx.Node, _Component], repeats: Mapping[fx.Node, int]
) -> list[fx.Node]:
    """The different outputs of layers that an operation puts one after the other along the channels; else empty."""
    parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if not isinstance(parts, list | tuple) or not all(read in of_node and repeats.get(read, 1) == 1 for read in parts):
        return []
    same = len({(of_node[read].count, of_node[read].pixels) for read in parts}) == 1
    different = len({of_node[read] for read in parts}) == len(parts)
    along = 1 if of_node[parts[0]].pixels else -1
    return list(parts) if same and different and dim == along else []


def _is_size(node: fx.Node) -> bool:
    """Whether it is a size of a tensor that does not depend on channels: height, width or rows."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] == "shape" and all(map(_is_size, node.users))
    made = node.args[0] if node.args else None
    of_shape = isinstance(made, fx.Node) and made.target is getattr and made.args[1] == "shape"
    return node.target is operator.getitem and of_shape and node.args[1] in (0, 2, 3, slice(-2, None), slice(2, None))


def _is_plain_layer(part: nn.Module) -> bool:
    if isinstance(part, nn.Conv2d):
        return type(part) is nn.Conv2d and part.groups == 1
    return isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward


def _passes(part: nn.Module, source: _Component) -> str:
    """How the units of a component go through a module: "" if not one by one, "between" if it has weights for each."""
    if isinstance(part, BATCH_NORMS) and part.num_features == source.count:
        return "between"
    if type(part) is nn.Conv2d and part.groups == part.in_channels == part.out_channels == source.count > 1:
        return "between"
    if isinstance(part, ELEMENTWISE) or (source.pixels and isinstance(part, (*POOLS, nn.Flatten))):
        return "elementwise"
    return ""


def _is_unary(node: fx.Node, kind: str) -> bool:
    return kind in UNARY and (kind != "to" or not any(isinstance(one, fx.Node) for one in node.args[1:]))


def _is_flat(node: fx.Node, kind: str) -> bool:
    """Whether the operation removes the dims of pixels and keeps the order of channels."""
    if kind == "flatten":
        return node.args[1:] in ((1,), (1, -1))
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return kind == "mean" and isinstance(dims, list | tuple) and tuple(dims) in ((2, 3), (-2, -1))


def _is_layer_output(node: fx.Node, source: _Component) -> bool:
    """Whether a chunk along the last dim is all that reads the output of a Linear."""
    made: Any = node.args[0]
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    return (
        dim == -1
        and not source.pixels
        and made.op == "call_module"
        and len(made.users) == 1
        and len(source.outputs) == 1
    )
