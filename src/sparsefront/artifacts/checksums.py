"""What the files of a finished stage held when it was stored, to tell damage from content."""

from pathlib import Path
from typing import Any

from sparsefront.artifacts.content_digest import file_digest

Checksums = dict[str, dict[str, Any]]  # path below the folder -> {"bytes", "sha256"}


def checksums(folder: Path) -> Checksums:
    """Size in bytes and sha256 of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_checksum(path) for path in files}


def file_checksum(path: Path) -> dict[str, Any]:
    """Of one file."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def find_damage(folder: Path, expected: Checksums) -> str | None:
    """The first file that is not what it was, and how; None where all are. Files that are not expected are left alone."""
    for name, stored in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != stored["bytes"]:
            return f"{name} has {size} bytes instead of {stored['bytes']}"
    for name, stored in expected.items():
        try:
            content = file_digest(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if content != stored["sha256"]:
            return f"{name} does not hold what was stored (its sha256 differs)"
    return None
