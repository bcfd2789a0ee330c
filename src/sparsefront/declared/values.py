"""Plain values, as a file of settings holds them, against the types that they should have."""

import dataclasses
import inspect
import json
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from sparsefront.declared.settings_class import STRICT, rejection
from sparsefront.errors import InvalidSetting, UnknownKey


def checked_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The values as their types have them: of plain containers, a float from a whole number, a tuple from a list.

    Args:
        values: name -> a plain value, as JSON could hold it.
        hints: name -> type; those of other names are left alone.
    Raises:
        InvalidSetting: the first value that does not fit; says what its type allows.
    """
    declared = with_config(STRICT)(TypedDict("Values", {name: hints[name] for name in values}))  # type: ignore[misc]
    try:
        # Strict about JSON: from Python no list would pass for a tuple, and no text for a path.
        return TypeAdapter(declared).validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise rejection(error, values, hints) from None


def checked_arguments(kind: type, values: Mapping[str, Any], *, taker: str | None = None) -> dict[str, Any]:
    """What a class may be made with: every value checked by the type of its parameter, before the class is called.

    Args:
        kind: its parameters may have no types, as of a user's own class; then any value will do.
        taker: what takes them, for messages; None: the class, by its name.
    Raises:
        UnknownKey: a value for no parameter.
        InvalidSetting: a parameter without a value and without a default, or a value that does not fit.
    """
    accepted, who = parameters_of(kind), taker or kind.__name__
    for key, value in values.items():
        if key not in accepted:
            raise UnknownKey(key, value, f"unknown key; {who} takes {', '.join(accepted) or 'no keys'}")
    for key in _missing(kind, accepted, values):
        where = f": set {taker}.{key}" if taker else ""
        raise InvalidSetting(key, None, f"is required by {kind.__name__}{where}")
    return checked_values(values, accepted)


def parameters_of(kind: type) -> dict[str, Any]:
    """What a class takes: name -> type hint, `Any` where it has none."""
    holder = kind if dataclasses.is_dataclass(kind) else kind.__init__  # type: ignore[misc]
    hints = typing.get_type_hints(holder, include_extras=True)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: hints.get(parameter.name, Any) for parameter in parameters if parameter.kind in named}


def _missing(kind: type, accepted: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Parameters without a default that no value is given for."""
    parameters = inspect.signature(kind).parameters
    return [name for name in accepted if parameters[name].default is inspect.Parameter.empty and name not in values]
