"""Keys of stored stages: a digest of everything that determines the content."""

import hashlib
import importlib.metadata
import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

DIGITS = 16


def digest(content: Any) -> str:
    """Short sha256 of JSON-able content; the order of mapping keys does not matter."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@lru_cache
def code_digest(*packages: str) -> str:
    """Digest of the sources of these (sub)packages: a stage made by other code is never taken for this one's.

    Args:
        packages: dotted names; their folders, or the single module file, are read whole.
    """
    hashed = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(package)
        origin = Path(spec.origin)
        files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
        for file in files:
            hashed.update(file.relative_to(origin.parent).as_posix().encode())
            hashed.update(file.read_bytes())
    return hashed.hexdigest()[:DIGITS]


def versions(*distributions: str) -> dict[str, str | None]:
    """Installed versions; None where a distribution is absent."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
