"""Paths that a user has set."""

from pathlib import Path

from sparsefront.errors import InvalidSetting


def local_path(path: str, *, expected: str, key: str = "path") -> Path:
    """The path with `~` filled in.

    Raises:
        InvalidSetting: nothing is there; says what to set.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise InvalidSetting(key, path, f"does not exist; set dataset.{key} to {expected}")
    return found
