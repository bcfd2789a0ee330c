"""Capture a block of a network as a graph of ATen operators."""

import copy
import io
import logging
import math
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import Max, Min
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from sparsefront.errors import failure_reason
from sparsefront.inference.fusion.cached_attention import NUMBER, place_cached_attention, without_numbers
from sparsefront.inference.fusion.calls import BlockCall, Unfusable, call_tensors, with_tensors
from sparsefront.networks import AlwaysClamped

# Dependencies of a block's graph besides its arguments: its modules, their tensors and the attributes that are read.

Attribute = tuple[str, str]
"""(name of a module in the block, name of its attribute)"""

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
REGISTERED = ("_parameters", "_buffers", "_modules")
ABSENT = object()


@contextmanager
def attribute_reads(block: nn.Module) -> Iterator[set[Attribute]]:
    """Record the attributes of the block's modules that are read inside the context, including methods and missing ones."""
    names = {id(module): name for name, module in block.named_modules()}
    reads: set[Attribute] = set()

    def note(module: nn.Module, attribute: str) -> Any:
        if id(module) in names:
            reads.add((names[id(module)], attribute))
        return super(nn.Module, module).__getattribute__(attribute)

    nn.Module.__getattribute__ = note  # type: ignore[assignment, method-assign]
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__


def structure(block: nn.Module) -> Hashable:
    """Key of a block's structure: classes of modules, shapes and dtypes of parameters and buffers, by name."""
    modules = tuple((name, type(module)) for name, module in block.named_modules())
    tensors = (*block.named_parameters(), *block.named_buffers())
    return modules, tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)


def plain_attributes(block: nn.Module, attributes: Iterable[Attribute]) -> Hashable:
    """Key of the attributes' values in the modules' `__dict__`: constants and containers by value, others by identity."""
    held = {name: vars(module) for name, module in block.named_modules()}
    return tuple(
        _comparable(held[module].get(attribute, ABSENT))
        for module, attribute in sorted(attributes)
        if attribute not in REGISTERED
    )


def _comparable(value: Any) -> Hashable:
    if isinstance(value, CONSTANTS):
        return type(value), repr(value)  # 1, 1.0 and True are equal, and so are 0.0 and -0.0
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_comparable, value))
    if isinstance(value, dict):
        return type(value), tuple((_comparable(key), _comparable(part)) for key, part in value.items())
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_comparable, value))
    return _Identity(value)


class _Identity:
    """Compares an object by identity and keeps it alive, so that its id is not reused."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


SMALLEST_FREE = 2  # export specializes sizes of 1, except for the batch


@dataclass(frozen=True)
class GraphSizes:
    """Input sizes that a graph supports.

    Args:
        shapes: of each tensor; a size is a number if it is static and a name if it is dynamic; sizes of one name are equal.
        limits: name -> (smallest, largest) size; None for no limit.
    """

    shapes: tuple[tuple[int | str, ...], ...]
    limits: Mapping[str, tuple[int | None, int | None]]

    def allow(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the graph supports these tensors."""
        known: dict[str, int] = {}
        for shape, tensor in zip(self.shapes, tensors, strict=True):
            for expected, size in zip(shape, tensor.shape, strict=True):
                if isinstance(expected, int):
                    if size != expected:
                        return False
                elif known.setdefault(expected, size) != size:
                    return False
        for name, (smallest, largest) in self.limits.items():
            if smallest is not None and known[name] < smallest or largest is not None and known[name] > largest:
                return False
        return True


def graph_sizes(exported: torch.export.ExportedProgram) -> GraphSizes:
    """The sizes that an exported block supports.

    Raises:
        Unfusable: its graph has guards other than limits of single sizes, such as an even length or one above another.
    """
    inputs = set(exported.graph_signature.user_inputs)
    tensors = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in inputs]
    shapes = tuple(tuple(_size(size) for size in tensor.shape) for tensor in tensors)
    free = [size.node for tensor in tensors for size in tensor.shape if isinstance(size, torch.SymInt)]
    ranges = {str(symbol): value_range for symbol, value_range in exported.range_constraints.items()}
    if free and (env := free[0].shape_env) is not None:
        _require_limits_only(env, dict(exported.range_constraints), _places(shapes))
    names = {size for shape in shapes for size in shape if isinstance(size, str)}
    return GraphSizes(shapes, {name: limits for name in sorted(names) if any(limits := _limits(ranges[name]))})


def _size(size: int | torch.SymInt) -> int | str:
    expression = sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size)
    if not (expression.is_Integer or expression.is_Symbol):
        raise Unfusable(f"needs a size that is a function of others ({expression})")
    return int(expression) if expression.is_Integer else str(expression)


def _limits(found: ValueRanges) -> tuple[int | None, int | None]:
    smallest = int(found.lower) if found.lower > SMALLEST_FREE else None
    return smallest, None if found.upper == int_oo else int(found.upper)


def _require_limits_only(env: ShapeEnv, ranges: dict[sympy.Symbol, ValueRanges], places: Mapping[str, str]) -> None:
    for guard in env.guards:
        # sympy's own Min and Max compare multiples of one size
        condition = env.replace(guard.expr).replace(Min, sympy.Min).replace(Max, sympy.Max)
        if bound_sympy(condition, ranges).lower != sympy.true:
            names = {symbol: sympy.Symbol(places.get(str(symbol), str(symbol))) for symbol in condition.free_symbols}
            raise Unfusable(f"does something else unless {shorten(str(condition.xreplace(names)), 100)}")


def _places(shapes: Iterable[tuple[int | str, ...]]) -> dict[str, str]:
    """Name of a dynamic size -> its first occurrence, such as tensor0.shape[1]."""
    places: dict[str, str] = {}
    for number, shape in enumerate(shapes):
        for dim, size in enumerate(shape):
            if isinstance(size, str):
                places.setdefault(size, f"tensor{number}.shape[{dim}]")
    return places


aten = torch.ops.aten
IDENTITIES = (aten.alias.default, aten.detach.default, aten.detach_.default, aten.lift_fresh_copy.default)
LIFTED = "lifted_tensor"  # part of the names of lifted constants
CHECKS = ("_assert", "sym_constrain_range", "_guards_fn", "_check")


@dataclass(frozen=True)
class Captured:
    """The graph of one kind of call.

    Args:
        graph: placeholders are the tensors of `call_tensors`; parameters are `get_attr` nodes named as in the block. It
            has no dropout and no checks, and reshape instead of view.
        out_spec: TreeSpec of its outputs.
        sizes: input sizes that it supports.
        reads: attributes of the block's modules on which the graph may depend.
    """

    graph: fx.Graph
    out_spec: pytree.TreeSpec
    sizes: GraphSizes
    reads: frozenset[Attribute]


def skeleton(block: nn.Module) -> nn.Module:
    """A copy of a module with parameters and buffers on the meta device."""
    tensors = [*block.parameters(), *block.buffers()]
    memo = {id(tensor): _on_meta(tensor) for tensor in tensors}
    return copy.deepcopy(block, memo)


def capture(bare: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
    """Export one kind of call of a block; sizes other than 1 stay dynamic where the block allows it.

    Args:
        bare: from `skeleton`, in eval mode.
        args, kwargs: of a call; only shapes, dtypes and constants are read, no tensor values.
    Raises:
        Unfusable: the block cannot be exported, or its graph depends on the device, on values, or on sizes in a way that
            `GraphSizes` cannot express.
    """
    tensors = call_tensors(args, kwargs)
    if not tensors:
        raise Unfusable("is called without a tensor")
    ways = list(dict.fromkeys(_free_sizes(tensors)))
    kind = type(bare).__module__, type(bare).__qualname__, len(ways), tensors[0].shape[:1] == (1,)
    first, reasons = _FIRST_EXPORTABLE.get(kind, 0), []
    for place in range(first, len(ways)):
        try:
            captured = _capture_call(bare, args, kwargs, tensors, ways[place])
        except Unfusable as reason:
            reasons.append(reason)
            continue
        _FIRST_EXPORTABLE[kind] = place
        _require_dynamic(captured.graph)
        return captured
    raise reasons[0]


_FIRST_EXPORTABLE: dict[Hashable, int] = {}  # class of blocks -> first choice of `_free_sizes` that could be exported


def _free_sizes(tensors: list[Tensor]) -> Iterator[tuple[tuple[bool, ...], ...]]:
    """Choices of dynamic sizes, from most to fewest: all; all but widths, such as those of rotary embeddings; the batch alone,
    for blocks that cut windows out of images; none.
    """
    lengths = {size for tensor in tensors for size in tensor.shape[:-1]}
    yield tuple((True,) * tensor.dim() for tensor in tensors)
    yield tuple(
        tuple(place < tensor.dim() - 1 or size in lengths for place, size in enumerate(tensor.shape))
        for tensor in tensors
    )
    yield tuple(tuple(place == 0 for place in range(tensor.dim())) for tensor in tensors)
    yield tuple((False,) * tensor.dim() for tensor in tensors)


def _capture_call(
    bare: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[Tensor],
    free: tuple[tuple[bool, ...], ...],
) -> Captured:
    tensors = [torch.empty(sizes, dtype=tensor.dtype, device="meta") for tensor, sizes in _example(tensors, free)]
    is_cached = BlockCall(tuple(args), dict(kwargs)).is_cached
    dynamic = (tuple(tuple(Dim.AUTO if size else Dim.STATIC for size in sizes) for sizes in free),)
    try:
        with (
            _quiet_export(),
            torch.no_grad(),
            AlwaysClamped(),
            without_numbers(bare) if is_cached else nullcontext(),
            attribute_reads(bare) as reads,
        ):
            flat = _Flat(bare, args, kwargs)
            exported = torch.export.export(flat, tuple(tensors), dynamic_shapes=dynamic, strict=False)
            module = _module_of(_functionalize(exported))
    except Exception as error:  # export may fail in any way; the block then stays unchanged
        raise Unfusable(f"cannot be exported: {failure_reason(error)}") from error
    sizes = graph_sizes(exported)
    if not sizes.allow(call_tensors(args, kwargs)):
        raise Unfusable("does something else for a batch of 1")
    graph = module.graph
    out_spec = exported.call_spec.out_spec
    graph.set_codegen(fx.graph.CodeGen())
    _inline_scalars(module)
    _simplify(graph, is_cached=is_cached)
    if is_cached:
        reads = {(module, attribute) for module, attribute in reads if attribute != NUMBER}
    return Captured(graph, out_spec, sizes, frozenset(reads))


class _Flat(nn.Module):
    """Calls a block with a flat list of tensors."""

    def __init__(self, block: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.block, self.args, self.kwargs = block, args, kwargs

    def forward(self, *tensors: Tensor) -> Any:
        args, kwargs = with_tensors(self.args, self.kwargs, tensors)
        return self.block(*args, **kwargs)


def _example(tensors: list[Tensor], free: tuple[tuple[bool, ...], ...]) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Each tensor with its sizes for export: a dynamic batch of 1 becomes 2, since export specializes 1."""
    alone = tensors[0].shape[:1] == (1,)
    for tensor, sizes in zip(tensors, free, strict=True):
        batched = alone and tensor.shape[:1] == (1,) and sizes[0]
        yield tensor, (2, *tensor.shape[1:]) if batched else tuple(tensor.shape)


def _on_meta(tensor: Tensor) -> Tensor:
    bare = torch.empty_like(tensor, device="meta")
    return nn.Parameter(bare, requires_grad=False) if isinstance(tensor, nn.Parameter) else bare


def _module_of(exported: torch.export.ExportedProgram) -> fx.GraphModule:
    try:
        return exported.module(check_guards=False)
    except TypeError:  # releases of torch without check_guards
        return exported.module()


@contextmanager
def _quiet_export():
    """Silence export, which warns about every size of 1 and prints what it cannot trace: users cannot act on that."""
    loggers = [
        logging.getLogger(name) for name in ("torch._export.non_strict_utils", "torch.fx.experimental.symbolic_shapes")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _functionalize(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Functionalize in-place operators; returned unchanged if inputs or buffers are mutated."""
    if not any(map(_mutates, exported.graph.nodes)):
        return exported
    for node in exported.graph.find_nodes(op="call_function", target=aten.dropout.default):
        if not node.args[2] and all(user.op != "output" for user in node.users):  # torch 2.11 would make them copies
            node.replace_all_uses_with(node.args[0])
            exported.graph.erase_node(node)
    functional = exported.run_decompositions({})
    signature = functional.graph_signature
    return exported if signature.user_inputs_to_mutate or signature.buffers_to_mutate else functional


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _inline_scalars(module: fx.GraphModule) -> None:
    """Replace 0-dim CPU constants, such as torch.tensor(8.0), by `aten.full` at their use."""
    for node in module.graph.find_nodes(op="get_attr"):
        if LIFTED not in node.target:
            continue
        held = operator.attrgetter(node.target)(module)
        if isinstance(held, Tensor) and held.device.type == "cpu" and held.dim() == 0:
            with module.graph.inserting_before(node):
                options: dict[str, Any] = {"dtype": held.dtype, "device": held.device}
                number = module.graph.call_function(aten.full.default, ([], held.item()), options)
            number.meta = dict(node.meta)
            node.replace_all_uses_with(number)
            module.graph.erase_node(node)


def _simplify(graph: fx.Graph, *, is_cached: bool) -> None:
    for node in list(graph.nodes):
        if node.op in ("call_function", "call_module") and any(part in str(node.target) for part in CHECKS):
            graph.erase_node(node)
        elif (
            node.target is aten.dropout.default and not node.args[2] or node.target in IDENTITIES or _is_noop_cast(node)
        ):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is aten.view.default:
            node.target = aten.reshape.default  # the view may be invalid for a feature-major tensor
    _use_input_device(graph)
    _fuse_operators(graph)
    if is_cached:
        place_cached_attention(graph)
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="get_attr"):
        node.target = node.target.removeprefix("block.")


def _use_input_device(graph: fx.Graph) -> None:
    """Create tensors on the device of the first input instead of the meta device."""
    first = next(node for node in graph.nodes if node.op == "placeholder")
    made = [node for node in graph.nodes if any(map(_is_meta, (*node.args, *node.kwargs.values())))]
    if not made:
        return
    after = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(after):
        device = graph.call_function(getattr, (first, "device"))
    for node in made:
        node.args = tuple(device if _is_meta(value) else value for value in node.args)
        node.kwargs = {name: device if _is_meta(value) else value for name, value in node.kwargs.items()}


def _is_meta(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "meta"


def _is_noop_cast(node: fx.Node) -> bool:
    """Whether a node is a no-op cast without a copy."""
    if node.target is not aten.to.dtype or node.kwargs or any(node.args[2:]):
        return False
    return node.meta["val"].dtype == node.all_input_nodes[0].meta["val"].dtype


def _require_dynamic(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if any(
            isinstance(value, torch.device) and value.type != "cpu" for value in (*node.args, *node.kwargs.values())
        ):
            raise Unfusable(f"makes a tensor on a fixed device ({node.name})")
        if _mutates(node):
            raise Unfusable(f"changes a tensor in place ({node.name})")
        if node.op == "get_attr" and LIFTED in node.target or node.op == "call_module":
            raise Unfusable(f"holds a constant that its graph cannot carry ({node.name})")


def _fuse_operators(graph: fx.Graph) -> None:
    """Replace all decomposed patterns, in place; dead nodes remain."""
    for softmax in graph.find_nodes(op="call_function", target=aten.softmax.int):
        _fuse_attention(graph, softmax)
    for rsqrt in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        _fuse_rms_norm(graph, rsqrt)
    for tanh in graph.find_nodes(op="call_function", target=aten.tanh.default):
        _fuse_gelu(graph, tanh)


# RMSNorm: x / sqrt(mean(x²) + eps) * weight, in float32 inside and rounded before or after the weight.

CASTS = (aten.to.dtype, aten.type_as.default, aten._to_copy.default)


def _fuse_rms_norm(graph: fx.Graph, rsqrt: fx.Node) -> None:
    """Replace the RMSNorm around this rsqrt, if it is one, by PyTorch's rms_norm, which rounds once."""
    mean_square = _mean_square(rsqrt)
    scaled = _only(rsqrt, aten.mul.Tensor)
    if mean_square is None or scaled is None:
        return
    x, eps = mean_square
    width = x.meta["val"].shape[-1]
    width = width.node.maybe_as_int() if isinstance(width, torch.SymInt) else width
    factor = scaled.args[0] if scaled.args[1] is rsqrt else scaled.args[1]
    if width is None or not isinstance(factor, fx.Node) or _skip_casts_before(factor) is not x:
        return
    last, weight = _skip_casts_after(scaled), None
    product = _only(last, aten.mul.Tensor)
    if product is not None:
        other = product.args[0] if product.args[1] is last else product.args[1]
        if isinstance(other, fx.Node) and _is_constant(other) and other.meta["val"].shape == (width,):
            last, weight = _skip_casts_after(product), other
    dtype = x.meta["val"].dtype
    if last.meta["val"].dtype != dtype:
        return
    own = weight is not None and weight.op == "get_attr" and weight.meta["val"].dtype == dtype
    with graph.inserting_before(last):
        norm = graph.call_function(aten.rms_norm.default, (x, [width], weight if own else None, eps))
        norm.meta = dict(last.meta)
        if weight is not None and not own:  # such as 1 + weight
            cast = graph.call_function(aten.to.dtype, (weight, dtype))
            cast.meta["val"] = weight.meta["val"].to(dtype)
            norm = graph.call_function(aten.mul.Tensor, (norm, cast))
            norm.meta = dict(last.meta)
    last.replace_all_uses_with(norm)


def _mean_square(rsqrt: fx.Node) -> tuple[fx.Node, float] | None:
    """x and eps of 1 / sqrt(mean(x²) + eps) over the last dimension; None for other computations."""
    total = rsqrt.args[0]
    if not isinstance(total, fx.Node) or total.target is not aten.add.Tensor or not isinstance(total.args[1], float):
        return None
    mean = total.args[0]
    if not isinstance(mean, fx.Node) or mean.target is not aten.mean.dim or mean.args[1:] != ([-1], True):
        return None
    square = mean.args[0]
    if not isinstance(square, fx.Node) or square.target is not aten.pow.Tensor_Scalar or square.args[1] != 2:
        return None
    return _skip_casts_before(square.args[0]), total.args[1]


def _skip_casts_before(node: Any) -> Any:
    while isinstance(node, fx.Node) and node.target in CASTS:
        node = node.args[0]
    return node


def _skip_casts_after(node: fx.Node) -> fx.Node:
    while len(node.users) == 1 and (user := next(iter(node.users))).target in CASTS and user.args[0] is node:
        node = user
    return node


def _only(node: fx.Node, target: Any) -> fx.Node | None:
    """The only user of a node if it calls `target`, else None."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return user if user is not None and user.target is target else None


def _is_constant(node: fx.Node) -> bool:
    """Whether a node depends on the block's parameters alone."""
    if node.op == "get_attr":
        return True
    return node.op == "call_function" and bool(node.all_input_nodes) and all(map(_is_constant, node.all_input_nodes))


# GELU with tanh approximation: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))).


def _fuse_gelu(graph: fx.Graph, tanh: fx.Node) -> None:
    """Replace the GELU around this tanh, if it is one, by PyTorch's gelu."""
    inner, plus = _operand(tanh.args[0], aten.mul.Tensor, math.sqrt(2 / math.pi)), _only(tanh, aten.add.Tensor)
    if inner is None or inner.target is not aten.add.Tensor or plus is None or plus.args != (tanh, 1.0):
        return
    x, cube = inner.args
    power = _operand(cube, aten.mul.Tensor, 0.044715)
    if power is None or power.target is not aten.pow.Tensor_Scalar or power.args != (x, 3.0):
        return
    whole = _only(plus, aten.mul.Tensor)
    half = None if whole is None else whole.args[0] if whole.args[1] is plus else whole.args[1]
    if whole is None or _operand(half, aten.mul.Tensor, 0.5) is not x:
        return
    with graph.inserting_before(whole):
        gelu = graph.call_function(aten.gelu.default, (x,), {"approximate": "tanh"})
    gelu.meta = dict(whole.meta)
    whole.replace_all_uses_with(gelu)


def _operand(node: Any, target: Any, constant: float) -> fx.Node | None:
    """x of target(x, constant); None for other computations."""
    if not isinstance(node, fx.Node) or node.target is not target or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0] if isinstance(node.args[1], float) and math.isclose(node.args[1], constant) else None


def _fuse_attention(graph: fx.Graph, softmax: fx.Node) -> None:
    """Replace the attention around this softmax, if it is one, by scaled_dot_product_attention."""
    scores, *dim = softmax.args
    score_parts, mixed = _scores(scores), next(iter(softmax.users))
    if score_parts is None or dim not in ([-1], [3]) or len(softmax.users) != 1:
        return
    product, scale, biases = score_parts
    query, transposed = [argument for argument in product.args if isinstance(argument, fx.Node)]
    keys = _keys(transposed)
    if mixed.target is not aten.matmul.default or mixed.args[0] is not softmax or keys is None:
        return
    if any(bias.meta["val"].dtype != query.meta["val"].dtype for bias in biases):
        return
    with graph.inserting_before(mixed):
        mask = biases[0] if biases else None
        for bias in biases[1:]:
            mask = graph.call_function(aten.add.Tensor, (mask, bias))
            mask.meta["val"] = softmax.meta["val"]
        arguments = (query, keys, mixed.args[1], mask)
        fused = graph.call_function(aten.scaled_dot_product_attention.default, arguments, {"scale": scale})
    fused.meta = dict(mixed.meta)
    mixed.replace_all_uses_with(fused)


def _scores(node: Any) -> tuple[fx.Node, float, list[fx.Node]] | None:
    """The product of queries and keys [B, heads, L, L], its scale, and added biases; None for other computations."""
    if not isinstance(node, fx.Node) or len(node.users) != 1 or node.kwargs:
        return None
    if node.target is aten.matmul.default:
        return (node, 1.0, []) if node.meta["val"].dim() == 4 else None
    if node.target in (aten.div.Tensor, aten.mul.Tensor):
        inner, factor = _scores(node.args[0]), node.args[1]
        if inner is None or inner[2] or not isinstance(factor, int | float):
            return None
        return inner[0], inner[1] / factor if node.target is aten.div.Tensor else inner[1] * factor, []
    if node.target is aten.add.Tensor:
        first, second = node.args
        inner, bias = (_scores(first), second) if _scores(first) is not None else (_scores(second), first)
        return None if inner is None or not isinstance(bias, fx.Node) else (inner[0], inner[1], [*inner[2], bias])
    return None


def _keys(transposed: fx.Node) -> fx.Node | None:
    """The keys [B, heads, L, d] that a node transposes to [B, heads, d, L]; None for another operator."""
    if transposed.target is not aten.transpose.int:
        return None
    keys, *dims = transposed.args
    swaps_last = set(dims) in ({-2, -1}, {2, 3})
    return keys if isinstance(keys, fx.Node) and swaps_last else None
