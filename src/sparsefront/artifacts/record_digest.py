"""sha256 of a record: what shows that one was edited after it was written."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

GROUP, FIELD = "identity", "record_sha256"


def record_digest(content: Mapping[str, Any]) -> str:
    """sha256 in hexadecimal over all that a result states, but for this digest itself.

    What was not measured (null, or empty) does not count, so that a field which a later version adds changes nothing; that
    it was taken away does.

    Args:
        content: the nested JSON of a result.
    """
    stated = {
        group: {name: value for name, value in fields.items() if (group, name) != (GROUP, FIELD)}
        for group, fields in content.items()
    }
    return hashlib.sha256(json.dumps(_without_gaps(stated), sort_keys=True, allow_nan=False).encode()).hexdigest()


def _without_gaps(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_gaps(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _without_gaps(entry) for name, entry in value.items()}
    return {name: entry for name, entry in kept.items() if entry is not None and entry != {} and entry != []}
