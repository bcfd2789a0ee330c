"""Find the blocks of a network, observe their calls, and key calls by what a graph depends on."""

import copy
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from sparsefront.errors import failure_reason
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
    """A block's arguments in the observed forward, without caches; of its last call, if there are several."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


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
    return next(tensors) if isinstance(value, Tensor) else value


def _slot(value: Any, batch: int) -> Hashable:
    if type(value) in (tuple, list):
        kind = "tuple" if type(value) is tuple else "list"  # Dynamo of torch 2.11 cannot hash the type's __name__
        return kind, tuple(_slot(part, batch) for part in value)
    if type(value) is dict:
        return "dict", tuple((name, _slot(value[name], batch)) for name in sorted(value))
    if isinstance(value, Tensor):
        ones = [statically_known_true(size == 1) for size in value.shape]  # adds no guard where a call is exported
        if batch == 1:
            ones[:1] = [False] * len(ones[:1])
        return "tensor", value.dtype == torch.bool, tuple(ones)
    return "constant", value


def _without_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockCall:
    """The call with None for KV caches: calls modify them, so timing and comparison run without."""
    plain = [None if hasattr(value, "get_seq_length") else value for value in args]
    keywords = {name: None if hasattr(value, "get_seq_length") else value for name, value in kwargs.items()}
    return BlockCall(tuple(plain), keywords)


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

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[name] = _without_caches(args, kwargs)

    with before_forward({name: net.get_submodule(name) for name in blocks}, note), torch.no_grad():
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
