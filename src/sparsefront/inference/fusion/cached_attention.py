"""Attention to a static cache in a block's graph: rotary embedding, the write into the cache and attention become one kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from sparsefront_kernels.attention import attend_cached
from torch import Tensor, fx, nn

from sparsefront.inference.fusion.calls import Unfusable

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
TO_THE_END = 2**63 - 1


def attend_one_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    scale: float,
    mask: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
) -> Tensor:
    """`attend_cached` for operands as blocks have them.

    Args:
        q: [B, heads, 1, d].
        k, v: [B, key heads, 1, d].
        mask: [B or 1, 1, 1, length].
        cos, sin: [B or 1, 1, rotary], or None.
    Returns:
        [B, heads, 1, d].
    """
    turns = [None if part is None else part[:, 0] for part in (cos, sin)]
    new = (part[:, :, 0] for part in (q, k, v))
    return attend_cached(*new, keys, values, position, scale, mask[:, 0, 0], *turns)[:, :, None]


NUMBER = "layer_idx"  # of a block in the network, as transformers call it


@contextmanager
def without_numbers(block: nn.Module) -> Iterator[None]:
    """Within, modules of the block have no number: blocks that only find their layer of a cache by it share a graph, and one
    that computes with it cannot be captured.
    """
    numbers = {part: getattr(part, NUMBER) for part in block.modules() if isinstance(getattr(part, NUMBER, None), int)}
    try:
        for part in numbers:
            setattr(part, NUMBER, object())
        yield
    finally:
        for part, number in numbers.items():
            setattr(part, NUMBER, number)


def place_cached_attention(graph: fx.Graph) -> None:
    """Replace attention to copies of keys and values, made by `CachedLayer.update`, by one call that changes these; dead nodes
    remain.

    Raises:
        Unfusable: the block attends to its cache in another way; the graph may be changed then.
    """
    writes = [
        node
        for node in graph.find_nodes(op="call_function", target=aten.index_copy.default)
        if node.args[0].op == "placeholder"
    ]
    attention = graph.find_nodes(op="call_function", target=ATTENTION)
    if len(writes) != 2 or len(attention) != 1:
        raise Unfusable("attends to its cache by other operators than one scaled_dot_product_attention")
    node = attention[0]
    query, *sources = node.args[:3]
    options = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:])) | dict(node.kwargs)
    mask, scale = options.pop("attn_mask", None), options.pop("scale", None)
    options.pop("enable_gqa", None)  # repeats heads, as the operators before it would
    if any(options.values()) or [_before_repetition(source) for source in sources] != writes:
        raise Unfusable("attends to a part of its cache, such as a window, or with options")
    if not isinstance(mask, fx.Node) or not _is_mask_of_keys(mask):
        raise Unfusable("attends to its cache without a mask that is the same for all heads")
    (keys, _, position, key), (values, _, _, value) = (write.args for write in writes)
    of_query, of_key = _rotation(query), _rotation(key)
    turns: tuple[fx.Node | None, fx.Node | None] = (None, None)
    if of_query is not None and of_key is not None and of_query.turns == of_key.turns:  # else by its own operators
        query, key, turns = of_query.x, of_key.x, of_query.turns
    scale = query.meta["val"].shape[-1] ** -0.5 if scale is None else scale
    with graph.inserting_before(node):
        operands = (query, key, value, keys, values, position, scale, mask, *turns)
        called = graph.call_function(attend_one_token, operands)
    called.meta = dict(node.meta)
    node.replace_all_uses_with(called)


def _before_repetition(node: Any) -> Any:
    """The keys or values [B, key heads, length, d] of which a node repeats each head for its queries, one after another."""
    while isinstance(node, fx.Node) and len(node.all_input_nodes) >= 1:
        if node.target is aten.slice.Tensor and tuple(node.args[2:]) != (0, TO_THE_END):
            break
        if node.target is aten.unsqueeze.default and node.args[1] != 2:
            break
        if node.target not in _REPEATS:
            break
        node = node.args[0]
    return node


_REPEATS = (
    *(aten.slice.Tensor, aten.unsqueeze.default, aten.expand.default, aten.reshape.default),
    *(aten.clone.default, aten.contiguous.default),
)


def _is_mask_of_keys(mask: fx.Node) -> bool:
    shape = mask.meta["val"].shape
    return len(shape) == 4 and shape[1] == 1 and shape[2] == 1


class Rotation(NamedTuple):
    """Rotary embedding of x [B, heads, 1, d] by cos and sin [B or 1, 1, rotary]: of all of its features, or the first."""

    x: fx.Node
    turns: tuple[fx.Node, fx.Node]


def _rotation(node: Any) -> Rotation | None:
    """The rotary embedding that a node computes, if its pairs are half of the rotated features apart."""
    if not isinstance(node, fx.Node) or node.target is not aten.cat.default:
        return _whole_rotation(node)
    parts: Any = node.args[0]
    rotation = _whole_rotation(parts[0]) if len(parts) == 2 else None
    if rotation is None or _slice_of(parts[1])[1:] != (_slice_of(rotation.x)[2], TO_THE_END):
        return None
    (source, start, _), (rest, *_) = _slice_of(rotation.x), _slice_of(parts[1])
    return Rotation(source, rotation.turns) if source is rest and start == 0 else None


def _whole_rotation(node: Any) -> Rotation | None:
    """x * cos + cat([-second half of x, first half]) * sin."""
    for straight, crossed in _operands(node, aten.add.Tensor):
        for x, cos in _operands(straight, aten.mul.Tensor):
            for halves, sin in _operands(crossed, aten.mul.Tensor):
                of_cos, of_sin = _per_head(cos), _per_head(sin)
                if of_cos is not None and of_sin is not None and _swaps_halves(halves, x):
                    return Rotation(x, (of_cos, of_sin))
    return None


def _swaps_halves(node: Any, x: Any) -> bool:
    parts: Any = node.args[0] if isinstance(node, fx.Node) and node.target is aten.cat.default else ()
    if len(parts) != 2:
        return False
    negative, first = parts
    if negative.target is not aten.neg.default:
        return False
    half = x.meta["val"].shape[-1] // 2
    return _slice_of(negative.args[0]) == (x, half, TO_THE_END) and _slice_of(first) == (x, 0, half)


def _slice_of(node: Any) -> tuple[Any, ...]:
    """Source, start and end of a slice of features; a node that is none of itself, without ends."""
    if node.target is not aten.slice.Tensor or node.args[1] not in (-1, node.meta["val"].dim() - 1):
        return node, None, None
    return node.args[0], *node.args[2:4]


def _per_head(node: Any) -> fx.Node | None:
    """cos or sin [B or 1, 1, rotary] of a node that has it for every head."""
    if not isinstance(node, fx.Node) or node.target is not aten.unsqueeze.default or node.args[1] != 1:
        return None
    turn: Any = node.args[0]
    return turn if turn.meta["val"].dim() == 3 and turn.meta["val"].shape[1] == 1 else None


def _operands(node: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """The two operands of a call of `target`, in both orders; nothing for another node."""
    if isinstance(node, fx.Node) and node.target is target and not node.kwargs and len(node.args) == 2:
        yield node.args
        yield node.args[::-1]
