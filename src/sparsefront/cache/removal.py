"""Removing stored stages that no process works on or reads."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sparsefront.artifacts.generations import maker_of
from sparsefront.artifacts.lease import GONE_S, hold_alone
from sparsefront.artifacts.leftovers import REMOVED
from sparsefront.artifacts.owner import process_tag
from sparsefront.cache.inventory import Stored


@dataclass
class Removal:
    """What was removed, and what was not, with the reason."""

    removed: list[Stored] = field(default_factory=list)
    kept: dict[Path, str] = field(default_factory=dict)


def remove(items: Iterable[Stored]) -> Removal:
    """Remove stages one by one. Those that a running process makes, goes on from or uses are kept, and those that one of another
    machine, which may only sleep, did within a day.
    """
    removal = Removal()
    for item in items:
        try:
            why_kept = _remove(item)
        except OSError as error:
            why_kept = f"cannot be removed: {error.strerror or error}"
        if why_kept is None:
            removal.removed.append(item)
        else:
            removal.kept[item.path] = why_kept
    return removal


def _remove(item: Stored) -> str | None:
    """Why it was kept; None where it is gone."""
    if (making := hold_alone(maker_of(item.path.with_name(item.key)), lapses_s=GONE_S)) is None:
        return "a running process makes it"
    try:
        using = hold_alone(item.path, lapses_s=GONE_S) if item.finished else making
        if using is None:
            return "a running process uses it"
        _discard(item.path)
        using.release()
    finally:
        making.release()
    return None


def _discard(path: Path) -> None:
    """By one rename first: no process finds it half there, also when this process is killed."""
    if path.exists():
        aside = path.with_name(f"{path.name}{REMOVED}{process_tag()}")
        os.rename(path, aside)
        shutil.rmtree(aside)
