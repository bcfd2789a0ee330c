"""How a block is called: which arguments are tensors, and what the others are."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Unfusable(Exception):
    """A block cannot be exported or rewritten; the message continues "the block ..."."""


CONSTANTS = (bool, int, float, str, type(None))
Key = Hashable


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
    """What a graph of a call depends on: of every tensor its place, kind and sizes of 1; all other values.

    A batch of 1 does not count: the graph of a larger batch serves it.

    Raises:
        Unfusable: an argument is neither a tensor nor a plain constant.
    """
    names = sorted(kwargs)
    values = [*args, *(kwargs[name] for name in names)]
    batch = next((value.shape[0] for value in values if isinstance(value, Tensor)), 1)
    return len(args), tuple(names), tuple(_slot(value, batch) for value in values)


def call_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a call: the positional ones, then those by keyword in the order of their names."""
    values = [*args, *(kwargs[name] for name in sorted(kwargs))]
    return [value for value in values if isinstance(value, Tensor)]


def with_tensors(args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> tuple[list, dict]:
    """The same call with other tensors, in the order of `call_tensors`."""
    rest = iter(tensors)
    positional = [next(rest) if isinstance(value, Tensor) else value for value in args]
    by_name = {name: next(rest) if isinstance(kwargs[name], Tensor) else kwargs[name] for name in sorted(kwargs)}
    return positional, by_name


def _slot(value: Any, batch: int) -> Hashable:
    if isinstance(value, Tensor):
        ones = [size == 1 for size in value.shape]
        if batch == 1:
            ones[:1] = [False]
        return "tensor", value.dtype == torch.bool, tuple(ones)
    if isinstance(value, CONSTANTS):
        return "constant", value
    raise Unfusable(f"is called with a {type(value).__name__}")
