"""What a type hint allows, in plain words: `a whole number of at least 1 or null`."""

import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

NOUNS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
SEVERAL = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}


def in_words(hint: Any) -> str:
    """What a value of this type may be.

    Args:
        hint: of a field, with its `Annotated` constraints. A description in `Field(description=...)` is added in brackets.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(option) for option in arguments)
    if origin is Literal:
        return _listed(map(str, arguments))
    if origin in (list, tuple):
        return f"a list of {_several(arguments[0])}"
    return NOUNS.get(hint, str(hint))


def _several(hint: Any) -> str:
    """Items of a list."""
    if get_origin(hint) is Literal:
        return f"names out of {', '.join(map(str, get_args(hint)))}"
    words = in_words(hint)
    for one, several in SEVERAL.items():
        words = words.replace(one, several, 1)
    return words


def _annotated(base: Any, notes: Iterable[Any]) -> str:
    fields = [note for note in notes if isinstance(note, FieldInfo)]
    constraints = [*(note for field in fields for note in field.metadata), *notes]
    words = in_words(base)
    if any(isinstance(note, MinLen) for note in constraints):
        words = words.replace("a list of", "a list of one or more", 1)
    if bounds := _whole_bounds(constraints) if base is int else _bounds(constraints):
        null = " or null" if words.endswith(" or null") else ""
        words = f"{words.removesuffix(null)} {bounds}{null}"
    described = next((field.description for field in fields if field.description), None)
    return words if described is None else f"{words} ({described})"


def _bounds(constraints: Iterable[Any]) -> str:
    """`of at least 0 and below 1`, `from 0 to 1`."""
    limits = dict(_limits(constraints))
    if limits.keys() == {"of at least", "at most"}:
        return f"from {limits['of at least']} to {limits['at most']}"
    return " and ".join(f"{side} {limit}" for side, limit in limits.items())


def _whole_bounds(constraints: Iterable[Any]) -> str:
    """The same of whole numbers, of which 1 is the least above 0."""
    whole = {Gt: lambda note: Ge(note.gt + 1), Lt: lambda note: Le(note.lt - 1)}
    return _bounds([whole[type(note)](note) if type(note) in whole else note for note in constraints])


def _limits(constraints: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for note in constraints:
        match note:
            case Ge(limit):
                yield "of at least", limit
            case Gt(limit):
                yield "greater than", limit
            case Le(limit):
                yield "at most", limit
            case Lt(limit):
                yield "below", limit


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return " or ".join(found) if len(found) < 3 else f"one of {', '.join(found)}"
