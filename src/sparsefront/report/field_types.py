"""The types that a field of a result may have: checked when a result is made, written to and read from cells of a CSV file."""

import json
import math
import types
import typing
from functools import lru_cache
from typing import Any

_JSON = json.JSONEncoder(allow_nan=False)


@lru_cache
def alternatives(hint: Any) -> tuple[Any, ...]:
    """The plain types behind a hint: `int | None` gives (int, NoneType), `dict[str, float]` gives (dict,)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(plain for part in typing.get_args(hint) for plain in alternatives(part))
    return (typing.get_origin(hint) or hint,)


def check_field(name: str, value: Any, hint: Any) -> None:
    """Check that a value fits the field.

    Raises:
        ValueError: of another type than the hint's (an int stands for a float, a bool never for a number), not finite,
            or a mapping or list that JSON cannot hold.
    """
    allowed = alternatives(hint)
    fits = isinstance(value, allowed) or (isinstance(value, int) and float in allowed)
    if isinstance(value, bool) and bool not in allowed:
        fits = False
    if not fits:
        raise ValueError(f"{name} is {value!r}, a {type(value).__name__}, where the result holds {hint_text(hint)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}: a result holds finite numbers, and None where nothing was measured")
    if value and isinstance(value, (dict, list)):
        try:
            _JSON.encode(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} holds what JSON cannot: {error}") from None


def hint_text(hint: Any) -> str:
    """A hint as one reads it in the source: `float | None` rather than `<class 'float'>`."""
    return hint.__name__ if isinstance(hint, type) else str(hint)


def to_cell(value: Any) -> Any:
    """A field as one cell: mappings and lists as JSON text with sorted keys, everything else (None too) unchanged."""
    return json.dumps(value, sort_keys=True, allow_nan=False) if isinstance(value, dict | list) else value


def from_cell(name: str, text: str, hint: Any) -> Any:
    """A field from the text of its cell; an empty cell is None where the field allows None.

    Raises:
        ValueError: the text is none of the field's types.
    """
    allowed = alternatives(hint)
    if text == "" and type(None) in allowed:
        return None
    # From the narrowest type to the widest, so that a granularity of "64" is a number and "4x64" stays text.
    for kind in (bool, int, float, dict, list, str):
        if kind not in allowed:
            continue
        try:
            return _parse(text, kind)
        except ValueError:
            continue
    raise ValueError(f"{name} is {text!r}, where the result holds {hint_text(hint)}")


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        if text not in ("True", "False"):
            raise ValueError(text)
        return text == "True"
    if kind in (dict, list):
        content = json.loads(text)
        if not isinstance(content, kind):
            raise ValueError(text)
        return content
    return kind(text)


class CheckedFields:
    """Checks the types of a group's fields when it is made: a wrong value is rejected where it is passed in."""

    def __post_init__(self) -> None:
        values = self.__dict__
        for name, hint, fit, may_be_float in _checked(type(self)):
            value = values[name]
            kind = type(value)
            if kind in fit or (kind is float and may_be_float and math.isfinite(value)):
                continue  # as nearly every value: stores hold millions of them
            check_field(f"{type(self).__name__.lower()}.{name}", value, hint)


@lru_cache
def _checked(group: type) -> tuple[tuple[str, Any, frozenset[type], bool], ...]:
    """(field, its hint, types whose every value fits, whether it may be a finite float) of a group."""
    always = {str, int, bool, type(None)}  # a mapping may hold what JSON cannot
    plain = {name: (hint, set(alternatives(hint))) for name, hint in typing.get_type_hints(group).items()}
    return tuple((name, hint, frozenset(always & kinds), float in kinds) for name, (hint, kinds) in plain.items())
