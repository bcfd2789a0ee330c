"""Files that are expensive to make and made once, also when several processes want them."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.content_digest import file_checksum, find_damage
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import held_alone

log = logging.getLogger(__name__)
_sound: set[tuple[Path, int]] = set()  # files that this process has read whole, with their times


def build_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by the first process that asks; the others wait for it. A damaged one is reported and made again.

    Args:
        target: where the file belongs; its folder is created. Its checksum lies beside it.
        make: writes the whole file to the path it is given, a neighbor that is renamed to `target` when complete, so
            that a process killed halfway leaves nothing that could be taken for the file.
    """
    if target.exists() and _damage(target) is None:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with held_alone(target):
        damage = _damage(target) if target.exists() else "it is not there"
        if damage is None:
            return target
        if target.exists():
            log.warning("damaged, discarded and made again: %s: %s", target, damage)
        with whole_file(target) as unfinished:
            make(unfinished)
            with whole_file(_checksum_file(target)) as beside:
                beside.write_text(json.dumps({target.name: file_checksum(unfinished)}))
    return target


def _damage(target: Path) -> str | None:
    """How the file is not what was written; None where it is, as far as its checksum is known."""
    version = target.resolve(), target.stat().st_mtime_ns
    beside = _checksum_file(target)
    if version in _sound or not beside.exists():
        return None
    try:
        damage = find_damage(target.parent, read_json_bounded(beside))
    except ValueError as error:
        return f"{beside.name} cannot be read ({error})"
    if damage is None:
        _sound.add(version)
    return damage


def _checksum_file(target: Path) -> Path:
    return target.with_name(target.name + ".sha256")
