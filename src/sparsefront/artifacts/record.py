"""What lies beside the files of a finished stage: seconds, its cache key, and the checksum of each file.

Also `used`: the keys of the stages that its run had used until then, so that it is known what a result needs even where a
stage between was removed.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.content_digest import are_checksums, checksums, find_damage

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
        record = read_json_bounded(folder / RECORD, finite=False)  # a setting may be infinite
    except ValueError as error:
        raise ValueError(f"{RECORD} cannot be read ({error})") from None
    if (fault := _fault(record)) is not None:
        raise ValueError(f"{RECORD} cannot be read ({fault})")
    return record


def _fault(record: Any) -> str | None:
    """What keeps JSON content from being a record, first of all."""
    if not isinstance(record, dict) or "determined_by" not in record:
        return "it has no determined_by"
    seconds, used = record.get("seconds"), record.get("used", [])
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not math.isfinite(seconds) or seconds < 0:
        return f"its seconds are {seconds!r}"
    if not isinstance(used, list) or not all(isinstance(key, str) for key in used):
        return "its used is no list of keys"
    return None if are_checksums(record.get("files", {})) else "its files have no checksums"


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
