"""What the graph of a block depends on besides its arguments: its modules, their tensors and the attributes that they read."""

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Attribute = tuple[str, str]
"""Name of a module in the block, name of its attribute."""

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
REGISTERED = ("_parameters", "_buffers", "_modules")
ABSENT = object()


@contextmanager
def attribute_reads(block: nn.Module) -> Iterator[set[Attribute]]:
    """The attributes of the block's modules that are read in the meantime, methods and missing ones among them."""
    names = {id(module): name for name, module in block.named_modules()}
    reads: set[Attribute] = set()

    def note(module: nn.Module, attribute: str) -> Any:
        if id(module) in names:
            reads.add((names[id(module)], attribute))
        return super(nn.Module, module).__getattribute__(attribute)

    nn.Module.__getattribute__ = note
    try:
        yield reads
    finally:
        del nn.Module.__getattribute__


def structure(block: nn.Module) -> Hashable:
    """Classes of its modules, shapes and dtypes of its parameters and buffers, by their names."""
    modules = tuple((name, type(module)) for name, module in block.named_modules())
    tensors = (*block.named_parameters(), *block.named_buffers())
    return modules, tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)


def plain_attributes(block: nn.Module, attributes: Iterable[Attribute]) -> Hashable:
    """The values of those that the modules hold themselves: constants and containers of them by value, others by identity."""
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
    """Equal for one and the same object, which it keeps alive: its id is not given to another one."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
