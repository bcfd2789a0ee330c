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


def _without_gaps(value: dict | list) -> dict | list:
    """Nearly all entries are neither mapping nor list, and none of those is a call: stores hold millions of them."""
    if isinstance(value, list):
        return [_without_gaps(entry) if isinstance(entry, dict | list) else entry for entry in value]
    kept = {}
    for name, entry in value.items():
        if isinstance(entry, dict | list):
            entry = _without_gaps(entry) or None
        if entry is not None:
            kept[name] = entry
    return kept
