"""Plain values, as a file of settings holds them, against the types that they should have."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from sparsefront.declared.settings_class import STRICT, rejection


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
