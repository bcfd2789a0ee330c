"""Type checks for fields of results, and conversion to and from CSV cells."""

import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from sparsefront.artifacts.bounded_files import MOST_DIGITS, parse_json_bounded

MOST_NUMBER = 1e18  # larger numbers could overflow in computations
MOST_SHOWN = 80  # characters of an invalid value in a message
_JSON = json.JSONEncoder(allow_nan=False)


@lru_cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """The plain types of a hint: `int | None` gives (int, NoneType), `dict[str, float]` gives (dict,)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(plain for part in typing.get_args(hint) for plain in alternatives(part))
    return (typing.get_origin(hint) or hint,)


def check_field(name: str, value: Any, hint: Any) -> None:
    """Check that a value is valid for the field.

    Raises:
        ValueError: the type does not match the hint (int is accepted for float, bool never for a number), a value is not
            finite, or a mapping or list cannot be JSON.
    """
    allowed = alternatives(hint)
    fits = isinstance(value, allowed) or (isinstance(value, int) and float in allowed)
    if isinstance(value, bool) and bool not in allowed:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} is {_shortened(value)}, a {type(value).__name__}, where the result holds {hint_text(hint)}"
        )
    if isinstance(value, (dict, list)) and not _fits_inside(value, hint):
        raise ValueError(f"{name} holds other values than the result's {hint_text(hint)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}: a result holds finite numbers, and None where nothing was measured")
    if isinstance(value, float | int) and abs(value) > MOST_NUMBER:
        raise ValueError(f"{name} is {_shortened(value)}: a result holds numbers up to {MOST_NUMBER:g}")
    if value and isinstance(value, (dict, list)):
        try:
            _JSON.encode(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} holds what JSON cannot: {error}") from None


def check_entries(name: str, entries: Iterable[Mapping[str, Any]], hints: Mapping[str, Any]) -> None:
    """Check those keys of a field's entries that readers use, if present. Raises ValueError as in `check_field`."""
    known = [(key, hint, _fitting(hint)) for key, hint in hints.items()]
    for entry in entries:
        for key, hint, fit in known:
            if key in entry and type(entry[key]) not in fit:
                check_field(f"{name}.{key}", entry[key], hint)


@lru_cache
def _fitting(hint: Any) -> frozenset[type]:
    """Types whose every value is valid: nested floats are finite, because JSON allows no others."""
    kinds = set(alternatives(hint)) - {dict, list}
    return frozenset(kinds | ({int} if float in kinds else set()))


def _fits_inside(value: Any, hint: Any) -> bool:
    """Whether the entries of a mapping or list match its hint at every level."""
    inner, allowed = _entries(hint, type(value))
    if type(value) is dict and not set(map(type, value)) <= {str}:
        return False
    if allowed is None:
        return True
    entries = value.values() if type(value) is dict else value
    kinds = set(map(type, entries))
    if not kinds <= allowed:
        return False
    if kinds <= {int, float}:
        return all(-MOST_NUMBER <= entry <= MOST_NUMBER for entry in entries)
    return kinds.isdisjoint((dict, list)) or all(_fits_inside(entry, inner) for entry in entries)


@lru_cache
def _entries(hint: Any, kind: type) -> tuple[Any, frozenset[type] | None]:
    """The hint for the entries of a mapping or list, and the types that are valid; None if all are."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    inner = next((typing.get_args(part)[-1] for part in parts if typing.get_origin(part) is kind), None)
    if inner is Any:
        return inner, None
    allowed = set() if inner is None else {*alternatives(inner)}
    return inner, frozenset(allowed | ({int} if float in allowed else set()))


def hint_text(hint: Any) -> str:
    """Format a hint as in source code: `float | None` instead of `<class 'float'>`."""
    return hint.__name__ if isinstance(hint, type) else str(hint)


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
    raise ValueError(f"{name} is {_shortened(text)}, where the result holds {hint_text(hint)}")


def _shortened(value: Any) -> str:
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


class CheckedFields:
    """Checks the types of a group's fields on construction, so that invalid values fail where they are passed."""

    def __post_init__(self) -> None:
        values = self.__dict__
        for name, hint, fit, numbers, containers in _checked(type(self)):
            value = values[name]
            kind = type(value)
            empty = kind in containers and not value
            if kind in fit or empty or (kind in numbers and -MOST_NUMBER <= value <= MOST_NUMBER):
                continue  # fast path for almost all of the millions of values in a store
            check_field(f"{type(self).__name__.lower()}.{name}", value, hint)


@lru_cache
def _checked(group: type) -> tuple[tuple[str, Any, frozenset[type], frozenset[type], frozenset[type]], ...]:
    """(field, its hint, types whose every value is valid, numbers valid up to a size, containers valid if empty) of a group."""
    always, numbers, containers = {str, bool, type(None)}, {int, float}, {dict, list}
    plain = {name: (hint, set(alternatives(hint))) for name, hint in typing.get_type_hints(group).items()}
    return tuple(
        (name, hint, frozenset(always & kinds), frozenset(numbers & kinds), frozenset(containers & kinds))
        for name, (hint, kinds) in plain.items()
    )


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
