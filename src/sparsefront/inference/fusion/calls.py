"""Find the blocks of a network, observe their calls, and key calls by what a graph depends on."""

import copy
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sparsefront_kernels.operands import TRITON_IS_INSTALLED
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from sparsefront.errors import failure_reason
from sparsefront.measure.decode import Decoder
from sparsefront.measure.problems import collect_problems
from sparsefront.networks import before_forward

log = logging.getLogger(__name__)


class Unfusable(Exception):
    """A block cannot be exported or rewritten; the message continues "the block ..."."""


# Calls of a block. Tensors may be nested in tuples, lists and dicts, as cosines and sines of rotary embeddings are.

PLAIN_ARGUMENTS = (bool, int, float, str, type(None), torch.dtype, torch.device)
Key = Hashable


@dataclass(frozen=True)
class BlockCall:
    """A block's arguments in the observed forward; of its last call, if there are several."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_cached(self) -> bool:
        """Whether it is of one token with a static cache."""
        return any(isinstance(value, CachedLayer) for value in (*self.args, *self.kwargs.values()))


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
    """The key of calls that may share a graph: position, kind and sizes of 1 of every tensor, and all other values.

    A batch size of 1 does not count: the graph of a larger batch serves it.

    Raises:
        Unfusable: an argument is neither a tensor, a plain constant nor a container of them, or is a nested tensor.
    """
    kind = find_unsupported(args, kwargs)
    if kind is not None:
        raise Unfusable(f"is called with a {kind}")
    tensors = call_tensors(args, kwargs)
    if any(tensor.is_nested for tensor in tensors):
        raise Unfusable("is called with nested tensors, which have no shape")
    batch = next((tensor.shape[0] for tensor in tensors if tensor.dim() > 0), 1)
    return len(args), _slot(list(args), batch), _slot(dict(kwargs), batch)


def find_unsupported(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The class name of the first argument that no graph can take, such as a KV cache; None where there is none."""
    for value in _leaves([list(args), dict(kwargs)]):
        if not isinstance(value, (Tensor, *PLAIN_ARGUMENTS)):
            return type(value).__name__
    return None


def call_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a call: positional ones first, then keywords sorted by name."""
    return [value for value in _leaves([list(args), dict(kwargs)]) if isinstance(value, Tensor)]


def with_tensors(args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> tuple[list, dict]:
    """The call with its tensors replaced, in the order of `call_tensors`."""
    rest = iter(tensors)
    positional = _replace_tensors(list(args), rest)
    return positional, _replace_tensors(dict(kwargs), rest)


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (tuple, list):
        for part in value:
            yield from _leaves(part)
    elif type(value) is CachedLayer:
        yield from value.tensors
    elif type(value) is dict:
        for name in sorted(value):
            yield from _leaves(value[name])
    else:
        yield value


def _replace_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_replace_tensors(part, tensors) for part in value)
    if type(value) is dict:
        return {name: _replace_tensors(value[name], tensors) for name in sorted(value)}
    if type(value) is CachedLayer:
        return CachedLayer(*(next(tensors) for _ in value.tensors))
    return next(tensors) if isinstance(value, Tensor) else value


def _slot(value: Any, batch: int) -> Hashable:
    if type(value) in (tuple, list):
        kind = "tuple" if type(value) is tuple else "list"  # Dynamo of torch 2.11 cannot hash the type's __name__
        return kind, tuple(_slot(part, batch) for part in value)
    if type(value) is dict:
        return "dict", tuple((name, _slot(value[name], batch)) for name in sorted(value))
    if type(value) is CachedLayer:
        return "cache", tuple(_slot(part, batch) for part in value.tensors)
    if isinstance(value, Tensor):
        ones = [statically_known_true(size == 1) for size in value.shape]  # adds no guard where a call is exported
        if batch == 1:
            ones[:1] = [False] * len(ones[:1])
        return "tensor", value.dtype == torch.bool, tuple(ones)
    return "constant", value


# A call of one new token per row with a static cache: the tensors of the block's layer of the cache take the cache's place.

STATIC_LAYERS = (
    "StaticLayer",
    "WrittenAt",
)  # of transformers, and of `measure.decode`; any other may read its cache otherwise


class CachedLayer:
    """One layer of a static cache, for the block that it belongs to, which calls it like the whole cache of transformers.

    Args:
        keys, values: [B, key heads, length, d].
        position: integer [], of the new token.
    """

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor) -> None:
        self.tensors = keys, values, position

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The keys and values with the new ones [B, key heads, 1, d], written in place; while a graph is captured, copies."""
        keys, values, position = self.tensors
        place = position.reshape(1)
        if keys.is_meta:
            return keys.index_copy(2, place, key_states), values.index_copy(2, place, value_states)
        return keys.index_copy_(2, place, key_states), values.index_copy_(2, place, value_states)


def cache_layer(block: nn.Module) -> int | None:
    """The layer of a cache that a block updates, as transformers number them; None where it has none, or several."""
    values = (getattr(part, "layer_idx", None) for part in block.modules())
    numbers = {number for number in values if isinstance(number, int)}
    return next(iter(numbers)) if len(numbers) == 1 else None


def one_token_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], number: int | None
) -> tuple[tuple[Any, ...], dict[str, Any], Any] | str:
    """The call with a `CachedLayer` instead of its static cache, and that layer of transformers; or what it is called with
    that no graph serves.

    Args:
        number: of the block's layer in the cache, from `cache_layer`.
    """
    caches = [value for value in (*args, *kwargs.values()) if _is_cache(value)]
    if len(caches) != 1:
        return f"is called with a {find_unsupported(args, kwargs)}"
    kind, layers = type(caches[0]).__name__, getattr(caches[0], "layers", ())
    x = next(iter(call_tensors(args, {})), kwargs.get("hidden_states"))
    if number is None or number >= len(layers) or not isinstance(x, Tensor) or x.dim() != 3 or x.shape[1] != 1:
        return f"is called with a {kind}"
    layer = layers[number]
    if type(layer).__name__ not in STATIC_LAYERS:
        return f"is called with a {kind} of {type(layer).__name__}"
    if not layer.is_initialized or layer.keys.dtype != x.dtype:
        return f"is called with an empty {kind}, or one of another dtype"
    if x.is_cuda and not TRITON_IS_INSTALLED:
        return f"is called with a {kind}, and Triton is not installed"
    cached = CachedLayer(layer.keys, layer.values, _next_position(layer))
    args = tuple(cached if value is caches[0] else value for value in args)
    return args, {name: cached if value is caches[0] else value for name, value in kwargs.items()}, layer


def count_token(layer: Any) -> None:
    """Count the token that a graph has written into a layer of a static cache, as the layer's own `update` does."""
    if getattr(layer, "positions", None) is None:
        layer.cumulative_length.add_(1)


def _next_position(layer: Any) -> Tensor:
    positions = getattr(layer, "positions", None)
    return layer.cumulative_length if positions is None else positions.reshape(())


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length")


def _without_caches(args: tuple[Any, ...], kwargs: dict[str, Any], number: int | None) -> BlockCall:
    """The call of one token with a `CachedLayer`; others with None for KV caches, which calls modify: timing and comparison
    run without.
    """
    call = one_token_call(args, kwargs, number)
    if not isinstance(call, str):
        return BlockCall(*call[:2])
    plain = [None if _is_cache(value) else value for value in args]
    return BlockCall(tuple(plain), {name: None if _is_cache(value) else value for name, value in kwargs.items()})


CONTAINERS = (nn.ModuleList, nn.Sequential)
FEWEST_LINEARS = 2  # a block with fewer has nothing to fuse


def find_chains(net: nn.Module) -> dict[str, list[str]]:
    """Container -> the names of its blocks, in order.

    Containers are the innermost ModuleLists and Sequentials whose elements each have no Linear or at least two.
    """
    chains = {}
    for name, module in net.named_modules():
        if isinstance(module, CONTAINERS) and _is_innermost(module):
            prefix = f"{name}." if name else ""
            chains[name] = [prefix + child for child, element in module.named_children() if _linears(element)]
    return chains


def observe_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """Run the net once and record the calls of its blocks; blocks that are not called are absent."""
    seen: dict[str, BlockCall] = {}
    modules = {name: net.get_submodule(name) for name in blocks}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[name] = _without_caches(args, kwargs, cache_layer(modules[name]))

    with before_forward(modules, note), torch.no_grad():
        net(**inputs)
    return seen


def observe_blocks(
    net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]
) -> tuple[dict[str, BlockCall], dict[str, int]]:
    """`observe_calls`, and the rows of X of each Linear in the blocks that this forward calls, by its name in the net."""
    submodules = {name: net.get_submodule(name).named_modules() for name in blocks}
    linears = [
        f"{name}.{layer}" for name, parts in submodules.items() for layer, part in parts if isinstance(part, nn.Linear)
    ]
    with collect_problems(net, linears) as problems:
        calls = observe_calls(net, blocks, inputs)
    return calls, {name: received.problem.m for name, received in problems.items()}


def _linears(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Linear) for part in module.modules())


def _qualifies(container: nn.Module) -> bool:
    counts = [_linears(element) for element in container.children() if _linears(element)]
    return bool(counts) and min(counts) >= FEWEST_LINEARS


def _is_innermost(container: nn.Module) -> bool:
    if not _qualifies(container):
        return False
    inner = (part for part in container.modules() if part is not container and isinstance(part, CONTAINERS))
    return not any(_qualifies(part) for part in inner)


# Calls of the blocks while the network is traced, which may differ from eager mode if the network inspects values.
#
# In eager mode transformers drops a mask that masks nothing, under torch.compile and CUDA graph capture it does not.


def observe_traced_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """`observe_calls` with fake tensors; nothing runs on the device.

    Returns:
        empty where the network needs values and so cannot be traced as a whole.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = {id(tensor): mode.from_tensor(tensor) for tensor in (*net.parameters(), *net.buffers())}
        traced = copy.deepcopy(net, tensors)  # a network may cache what it computes
        fake = {name: mode.from_tensor(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
        with mode:
            return observe_calls(traced, blocks, fake)
    except Exception as error:  # a network may need values in any way
        log.debug("the network cannot be traced as a whole: %s", failure_reason(error))
        return {}


CACHE_LENGTH, MOST_ROWS = 256, 16  # of the static cache that steps are observed with


def observe_cached_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """`observe_calls` of one token per row after a full static cache, but for its last place.

    Returns:
        empty where the network generates no text with such a cache.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel():
        return {}
    try:
        decoder = Decoder(net, ids[:MOST_ROWS, :1], CACHE_LENGTH)
        decoder.position.fill_(CACHE_LENGTH - 1)
        names = {f"net.{name}": name for name in blocks}
        calls = observe_calls(decoder, list(names), {"input_ids": ids[:MOST_ROWS, :1]})
    except Exception as error:  # a network may refuse a cache in any way
        log.debug("the network is not called with a static cache: %s", failure_reason(error))
        return {}
    return {names[name]: call for name, call in calls.items() if call.is_cached}
