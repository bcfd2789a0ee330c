"""Type checks for fields of results, and conversion to and from CSV cells."""

import json
import types
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from sparsefront.artifacts.bounded_files import MOST_DIGITS, parse_json_bounded

MOST_SHOWN = 80  # characters of an invalid value in a message

Real = Annotated[float, Field(ge=-1e18, le=1e18)]
"""A finite number; a larger one could overflow in computations."""
Whole = Annotated[int, Field(ge=-(10**18), le=10**18)]
Positive = Annotated[float, Field(gt=0, le=1e18)]
"""Where nothing was timed, the field is None."""


class CheckedFields:
    """Checks the types of a group's fields on construction, so that invalid values fail where they are passed.

    An int is accepted for a float and stays one, since a record's digest is of its text; a bool is no number.

    Raises:
        ValueError: names the group, the field and, in a mapping or list, the entry.
    """

    def __post_init__(self) -> None:
        try:
            _checker(type(self)).validate_python(self.__dict__)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, (type(self).__name__.lower(), *first["loc"])))
            value = "" if first["type"] == "missing" else f"={_shorten(first['input'])}"
            raise ValueError(f"{path}{value}: {first['msg']}") from None


@lru_cache
def _checker(group: type) -> TypeAdapter:
    hints = typing.get_type_hints(group, include_extras=True)
    config = ConfigDict(strict=True, allow_inf_nan=False)
    return TypeAdapter(with_config(config)(TypedDict(group.__name__, hints)))  # type: ignore[misc]


@lru_cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """The plain types of a hint: `int | None` gives (int, NoneType), `dict[str, float]` gives (dict,)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(plain for part in typing.get_args(hint) for plain in alternatives(part))
    return (typing.get_origin(hint) or hint,)


def holds_entries(hint: Any) -> bool:
    """Whether a field is a mapping or a list."""
    return not {dict, list}.isdisjoint(alternatives(hint))


def to_cell(value: Any) -> Any:
    """A field as one cell: mappings and lists as JSON with sorted keys, everything else (including None) unchanged."""
    return json.dumps(value, sort_keys=True, allow_nan=False) if isinstance(value, dict | list) else value


def from_cell(name: str, text: str, hint: Any) -> Any:
    """Parse a field from its cell; an empty cell is None if the field allows None.

    Raises:
        ValueError: the text matches none of the field's types.
    """
    allowed = alternatives(hint)
    if text == "" and type(None) in allowed:
        return None
    # From narrow to wide, so that a granularity of "64" becomes a number and "4x64" stays text.
    for kind in (bool, int, float, dict, list, str):
        if kind not in allowed:
            continue
        try:
            return _parse(text, kind)
        except ValueError:
            continue
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in allowed)
    raise ValueError(f"{name}={_shorten(text)}: must be {names}")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        if text.capitalize() not in ("True", "False"):  # spreadsheets write TRUE
            raise ValueError(text)
        return text.capitalize() == "True"
    if kind is int and len(text) > MOST_DIGITS:
        raise ValueError(text)
    if kind in (dict, list):
        content = _parse_json(text)
        if not isinstance(content, kind):
            raise ValueError(text)
        return content
    return kind(text)


@lru_cache(maxsize=2**10)
def _parse_json(text: str) -> Any:
    """Equal cells of a store share one value: most lines of a sweep have the same settings."""
    return parse_json_bounded(text)


def differences(path: tuple, stated: Any, here: Any) -> Iterator[tuple[tuple, Any, Any]]:
    """(path, stated, here) of each leaf of two values that is not equal in both; None where one lacks it."""
    if isinstance(stated, dict) and isinstance(here, dict):
        for key in {**stated, **here}:
            yield from differences((*path, key), stated.get(key), here.get(key))
    elif isinstance(stated, list) and isinstance(here, list) and len(stated) == len(here):
        for index, pair in enumerate(zip(stated, here, strict=True)):
            yield from differences((*path, index), *pair)
    elif stated != here or type(stated) is bool is not type(here):
        yield path, stated, here


def part_at(value: Any, path: tuple) -> Any:
    """The entry of nested mappings and lists; None if there is none."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value
