"""Operands in memory of their own, so that providers can take turns with them."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def copied(value: Any) -> Any:
    """The value with every tensor in it cloned, within dataclasses, tuples and lists."""
    if isinstance(value, Tensor):
        return value.clone()
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        return replace(value, **{name: copied(part) for name, part in parts.items()})
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    return value


def numbered(value: Any) -> Callable[[int], Any]:
    """Number → a copy of the value, the same one for the same number; 0 is the value itself."""
    made = [value]

    def number(copy: int) -> Any:
        made.extend(copied(value) for _ in range(len(made), copy + 1))
        return made[copy]

    return number
