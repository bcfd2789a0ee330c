"""A finished stage that is made again while others read it.

    <key>          a finished stage
    <key>.again-1  made again while a process read <key>; the highest number counts

A process that uses a stage holds a shared lease on it (`artifacts.lease`), which ends with the process, however it ends. A
stage that no process reads is replaced under its own name. One that is read stays where it is, the new one lies
beside it, and the next process that makes the stage removes it. No process ever waits, so that no two runs wait for each other.
"""

import errno
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from sparsefront.artifacts.durable import rename_synced
from sparsefront.artifacts.lease import GONE_S, Lease, hold_alone, hold_shared
from sparsefront.artifacts.owner import process_tag
from sparsefront.artifacts.record import RECORD

AGAIN = ".again-"
MOVED_S = 0.01  # a maker holds a stage by itself for as long as it takes to rename it


def maker_of(folder: Path) -> Path:
    """What the maker of a stage holds alone, with those who read the stage of that name not in its way."""
    return folder.with_name(f"{folder.name}.maker")


@dataclass(frozen=True)
class Held:
    """A stage that is not removed for as long as this object lives.

    Args:
        path: its folder.
        hold: on it; None where this process may not write beside the stage, and so removes nothing of anybody.
    """

    path: Path
    hold: Lease | None


def hold_newest(folder: Path) -> Held | None:
    """The newest stage of that name, held; None where there is none."""
    while (found := newest(folder)) is not None:
        try:
            hold = hold_shared(found)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return Held(found, None)
        # Removed between the two calls: the lease would be on what no other process finds.
        if hold is not None and (found / RECORD).exists():
            return Held(found, hold)
        del hold
        time.sleep(MOVED_S)
    return None


def put(partial: Path, folder: Path) -> Held:
    """Give a finished folder the name `folder`, or one beside it where a process reads what is there, and hold it.

    The caller is the only maker of this stage.
    """
    if folder.is_file():
        folder.unlink()  # somebody's, under the name of a stage
    elif not (folder / RECORD).exists():
        shutil.rmtree(folder, ignore_errors=True)  # it lost its record and is no stage
    older = _generations(folder)
    target = folder if not older else folder.with_name(f"{folder.name}{AGAIN}{number(older[-1]) + 1}")
    rename_synced(partial, target)
    for old in older:
        _remove(old)
    # The name without a number counts as the oldest.
    if target != folder and _generations(folder) == [target]:
        if (hold := hold_alone(target, lapses_s=GONE_S)) is not None:
            rename_synced(target, folder)
            hold.release()
    return hold_newest(folder)


def newest(folder: Path) -> Path | None:
    """The newest stage of that name, which may be gone at the next moment; None where there is none."""
    # twice, since a maker may add one and remove another while the names are read
    found = _generations(folder) or _generations(folder)
    return found[-1] if found else None


def _generations(folder: Path) -> list[Path]:
    """All finished stages of that name, the oldest first."""
    beside = [path for path in folder.parent.glob(f"{folder.name}{AGAIN}*") if path.name.rpartition("-")[2].isdigit()]
    return [path for path in (folder, *sorted(beside, key=number)) if (path / RECORD).exists()]


def number(folder: Path) -> int:
    """How often the stage was made again while a process read the one before."""
    return int(folder.name.rpartition(AGAIN)[2]) if AGAIN in folder.name else 0


def _remove(folder: Path) -> None:
    """Unless a process reads it, or may wake and read it. Under the name of something unfinished, so that the next maker sweeps
    up after a kill.
    """
    if (hold := hold_alone(folder, lapses_s=GONE_S)) is None:
        return
    gone = folder.with_name(f"{folder.name.partition('.')[0]}.partial-{process_tag()}-{number(folder)}")
    os.replace(folder, gone)
    hold.release()
    shutil.rmtree(gone)
