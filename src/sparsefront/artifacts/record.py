"""What lies beside the files of a finished stage: seconds, its cache key, and the checksum of each file.

Also `used`: the keys of the stages that its run had used until then, so that it is known what a result needs even where a
stage between was removed.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparsefront.artifacts.content_digest import checksums, find_damage

RECORD = "determined_by.json"  # the last file that is written: a folder that has it is whole
_sound: set[tuple] = set()  # stages that this process has read whole, or made: they are not read again for a check


def write_record(folder: Path, seconds: float, cache_key: dict[str, Any], *, used: Iterable[str] = ()) -> None:
    """Of a stage whose files are all written."""
    content = {"seconds": seconds, "determined_by": cache_key, "used": sorted(used), "files": checksums(folder)}
    (folder / RECORD).write_text(json.dumps(content, indent=2, default=str))


def read_record(folder: Path) -> dict[str, Any]:
    """seconds, determined_by, and files, which stages of earlier versions lack.

    Raises:
        ValueError: it cannot be read; says why.
    """
    try:
        record = json.loads((folder / RECORD).read_text())
        return {"seconds": float(record["seconds"]), "determined_by": record["determined_by"], **record}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{RECORD} cannot be read ({type(error).__name__}: {error})") from error


def damage_of(folder: Path) -> str | None:
    """Which file of a finished stage is not what was stored, and how; None where all are, as far as checksums are known."""
    try:
        if _version(folder) in _sound:
            return None
        damage = find_damage(folder, read_record(folder).get("files", {}))
    except (OSError, ValueError) as error:
        return str(error)
    if damage is None:
        mark_sound(folder)
    return damage


def mark_sound(folder: Path) -> None:
    """Of a stage that this process has made."""
    _sound.add(_version(folder))


def _version(folder: Path) -> tuple:
    """Tells a stage from another one that took its place."""
    found = (folder / RECORD).stat()
    return folder.resolve(), found.st_ino, found.st_mtime_ns
