"""Cache keys of stored stages: a digest of everything that the content depends on."""

import hashlib
import importlib.metadata
import json
from typing import Any

DIGITS = 16


def digest(content: Any) -> str:
    """Short sha256 of JSON-able content; the order of mapping keys does not matter."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed versions; None where a distribution is absent.

    A stage's key holds those of the libraries that its result depends on, in place of their sources.
    """
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
