"""What killed processes left in the cache: half-written, half-removed, or held."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sparsefront.artifacts.durable import PARTIAL
from sparsefront.artifacts.generations import maker_of
from sparsefront.artifacts.lease import GONE_S, hold_alone, remove_dead
from sparsefront.artifacts.walk import below

log = logging.getLogger(__name__)
REMOVED = ".removed-"  # in the name of a stage that is being removed: renamed first, so that it is never half there


def remove_leftovers(root: Path) -> list[Path]:
    """Remove what no process works on any more: none holds it, and none of another host held it within a day, which may only
    sleep. What a later run can go on from (`.unfinished`) stays.

    Args:
        root: the cache folder.
    Returns:
        what was removed.
    """
    removed = []
    for path, target in _half_done(root):
        try:
            if (lease := hold_alone(target, lapses_s=GONE_S)) is None:  # somebody works on it, or may wake
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            lease.release()
        except OSError:  # another run removes it at this moment, or it is not ours
            continue
        removed.append(path)
    for folder in [*root.glob("*/.*.leases"), *below(root / "data", ".*.leases")]:
        with suppress(OSError):
            remove_dead(folder)
    if removed:
        log.info("removed what killed runs had left half-written: %s", ", ".join(map(str, removed)))
    return removed


def _half_done(root: Path) -> Iterator[tuple[Path, Path]]:
    """Folders of stages and files of prepared data, each with what the process that works on it holds."""
    for path in [*root.glob(f"*/*{PARTIAL}*"), *root.glob(f"*/*{REMOVED}*")]:
        if path.is_dir():
            yield path, maker_of(path.with_name(path.name.split(".")[0]))
    for path in below(root / "data", f"{PARTIAL}*"):
        name = path.name.removeprefix(PARTIAL).partition("-")[2].removesuffix(".sha256")
        yield path, path.with_name(name)
