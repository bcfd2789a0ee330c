"""What killed processes left half-written or half-removed in the cache."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from sparsefront.artifacts.durable import PARTIAL

log = logging.getLogger(__name__)
REMOVED = ".removed-"  # in the name of a stage that is being removed: renamed first, so that it is never half there


def remove_leftovers(root: Path) -> list[Path]:
    """Remove what no process works on any more: its lock is free. What a later run can go on from (`.unfinished`) stays.

    Args:
        root: the cache folder.
    Returns:
        what was removed.
    """
    removed = []
    for path, lock in _half_done(root):
        try:
            with FileLock(lock, timeout=0):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        except (Timeout, OSError):  # somebody works on it; or another run removes it at this moment, or it is not ours
            continue
        removed.append(path)
    if removed:
        log.info("removed what killed runs had left half-written: %s", ", ".join(map(str, removed)))
    return removed


def _half_done(root: Path) -> Iterator[tuple[Path, Path]]:
    """Folders of stages and files of prepared data, each with the lock of the process that works on it."""
    for path in [*root.glob(f"*/*{PARTIAL}*"), *root.glob(f"*/*{REMOVED}*")]:
        if path.is_dir():
            yield path, path.with_name(path.name.split(".")[0] + ".lock")
    for path in (root / "data").rglob(f"{PARTIAL}*"):
        name = path.name.removeprefix(PARTIAL).partition("-")[2].removesuffix(".sha256")
        yield path, path.with_name(f"{name}.lock")
