"""Replace decomposed attention, RMSNorm and GELU in a graph by PyTorch's fused operators."""

import math
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def fuse_operators(graph: fx.Graph) -> None:
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


# Decomposed attention, softmax(Q Kᵀ / c + biases) V as in MPNet.


def _fuse_attention(graph: fx.Graph, softmax: fx.Node) -> None:
    """Replace the attention around this softmax, if it is one, by scaled_dot_product_attention."""
    scores, *dim = softmax.args
    score_parts, mixed = _scores(scores), next(iter(softmax.users))
    if score_parts is None or dim not in ([-1], [3]) or len(softmax.users) != 1:
        return
    product, scale, biases = score_parts
    query, transposed = _node_arguments(product)
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


def _node_arguments(node: fx.Node) -> list[fx.Node]:
    """The arguments of a call that are nodes."""
    return [argument for argument in node.args if isinstance(argument, fx.Node)]
