"""Settings as keys hold them: what a path leads to in place of the path."""

from pathlib import Path
from typing import Any

from sparsefront.artifacts.content_digest import path_digest

NAMES = ("_target_", "hub")  # of code, and of what is fetched


def by_content(settings: Any) -> Any:
    """Plain containers with every text that names an existing file or folder replaced by the digest of its content.

    A text is taken for a path where it begins with `~`, holds a slash or ends with a suffix, and something lies there; so
    the name of an option is not, whatever lies in the working directory. What lies nowhere stays as it is, and so does what
    is stored under one of the keys `NAMES`.
    """
    if isinstance(settings, dict):
        return {key: value if key in NAMES else by_content(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [by_content(value) for value in settings]
    if not isinstance(settings, str):
        return settings
    path = _path(settings)
    return settings if path is None else {"content": path_digest(path)}


def _path(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        named = text.startswith("~") or len(path.parts) > 1 or path.is_absolute() or path.suffix
        return path if named and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long for a path, a null in it, a user that does not knows
        return None
