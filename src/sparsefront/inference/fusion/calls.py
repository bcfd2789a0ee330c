"""Which modules of a network are blocks, how it calls them, and what of a call a graph depends on."""

import copy
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from sparsefront.errors import failure_reason
from sparsefront.networks import before_forward

log = logging.getLogger(__name__)


class Unfusable(Exception):
    """A block cannot be exported or rewritten; the message continues "the block ..."."""


# How a block is called: which arguments are tensors, and what the others are. Tensors may stand in tuples, lists and dicts, as
# the cosines and sines of rotary embeddings do.

PLAIN_ARGUMENTS = (bool, int, float, str, type(None), torch.dtype, torch.device)
Key = Hashable


@dataclass(frozen=True)
class BlockCall:
    """What a block receives in the observed forward, but for caches: its last call, if there are several."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
    """What a graph of a call depends on: of every tensor its place, kind and sizes of 1; all other values.

    A batch of 1 does not count: the graph of a larger batch serves it.

    Raises:
        Unfusable: an argument holds what is no tensor, no plain constant and no container of them, or a nested tensor.
    """
    if (kind := foreign_kind(args, kwargs)) is not None:
        raise Unfusable(f"is called with a {kind}")
    tensors = call_tensors(args, kwargs)
    if any(tensor.is_nested for tensor in tensors):
        raise Unfusable("is called with nested tensors, which have no shape")
    batch = next((tensor.shape[0] for tensor in tensors if tensor.dim() > 0), 1)
    return len(args), _slot(list(args), batch), _slot(dict(kwargs), batch)


def foreign_kind(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The class of the first value that no graph can be given, such as a cache of keys and values; None where there is none."""
    for value in _leaves([list(args), dict(kwargs)]):
        if not isinstance(value, (Tensor, *PLAIN_ARGUMENTS)):
            return type(value).__name__
    return None


def call_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a call: the positional ones, then those by keyword in the order of their names."""
    return [value for value in _leaves([list(args), dict(kwargs)]) if isinstance(value, Tensor)]


def with_tensors(args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> tuple[list, dict]:
    """The same call with other tensors, in the order of `call_tensors`."""
    rest = iter(tensors)
    positional = _replaced(list(args), rest)
    return positional, _replaced(dict(kwargs), rest)


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (tuple, list):
        for part in value:
            yield from _leaves(part)
    elif type(value) is dict:
        for name in sorted(value):
            yield from _leaves(value[name])
    else:
        yield value


def _replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_replaced(part, tensors) for part in value)
    if type(value) is dict:
        return {name: _replaced(value[name], tensors) for name in sorted(value)}
    return next(tensors) if isinstance(value, Tensor) else value


def _slot(value: Any, batch: int) -> Hashable:
    if type(value) in (tuple, list):
        kind = "tuple" if type(value) is tuple else "list"  # its __name__ is nothing that Dynamo of torch 2.11 can hash
        return kind, tuple(_slot(part, batch) for part in value)
    if type(value) is dict:
        return "dict", tuple((name, _slot(value[name], batch)) for name in sorted(value))
    if isinstance(value, Tensor):
        ones = [size == 1 for size in value.shape]
        if batch == 1:
            ones[:1] = [False] * len(ones[:1])
        return "tensor", value.dtype == torch.bool, tuple(ones)
    return "constant", value


def _without_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockCall:
    """The call with None for caches of keys and values, which calls change: what is timed and compared has none."""
    plain = [None if hasattr(value, "get_seq_length") else value for value in args]
    named = {name: None if hasattr(value, "get_seq_length") else value for name, value in kwargs.items()}
    return BlockCall(tuple(plain), named)


# Which modules are blocks, and how the network calls them.

CONTAINERS = (nn.ModuleList, nn.Sequential)
FEWEST_LINEARS = 2  # a block with fewer has no neighbors to fuse


def find_chains(net: nn.Module) -> dict[str, list[str]]:
    """Container -> the names of its blocks, in order.

    Containers are the innermost ModuleLists and Sequentials of which each element that has Linears at all has at least two.
    """
    chains = {}
    for name, module in net.named_modules():
        if isinstance(module, CONTAINERS) and _is_innermost(module):
            prefix = f"{name}." if name else ""
            chains[name] = [prefix + child for child, element in module.named_children() if _linears(element)]
    return chains


def observe_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """Run the net once and note how its blocks are called; blocks that are not called are absent."""
    seen: dict[str, BlockCall] = {}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[name] = _without_caches(args, kwargs)

    with before_forward({name: net.get_submodule(name) for name in blocks}, note), torch.no_grad():
        net(**inputs)
    return seen


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


# How a network calls its blocks while it is traced: otherwise than in eager mode where it looks at values.
#
# transformers gives attention no mask where nothing is masked, but one under torch.compile and while a CUDA graph is
# recorded.


def observe_traced_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """As `observe_calls`, with tensors that have a device, a dtype and sizes but no values; nothing runs on the device.

    Returns:
        none where the network needs values, so that it cannot be traced as a whole either.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = {id(tensor): mode.from_tensor(tensor) for tensor in (*net.parameters(), *net.buffers())}
        traced = copy.deepcopy(net, tensors)  # a network may keep what it computes
        fake = {name: mode.from_tensor(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
        with mode:
            return observe_calls(traced, blocks, fake)
    except Exception as error:  # a network may need values in any way
        log.debug("the network cannot be traced as a whole: %s", failure_reason(error))
        return {}
