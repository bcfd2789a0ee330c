"""A finished stage that is made again while others read it.

    <key>          a finished stage
    <key>.again-1  made again while somebody read <key>; the highest number counts

Who has a stage in hand holds a shared lock on its record, which the system takes back when the process ends, however it
ends. A stage that nobody reads is replaced under its own name. One that is read stays where it is, the new one lies
beside it, and whoever makes the stage the next time removes it. Nobody ever waits, so that no two runs wait for each other.
"""

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

RECORD = "determined_by.json"  # the last file that is written: a folder that has it is whole
AGAIN = ".again-"
MOVED_S = 0.01  # a maker holds a stage by itself for as long as it takes to rename it


@dataclass(frozen=True)
class Held:
    """A stage that is not removed for as long as this object lives.

    Args:
        path: its folder.
        descriptor: of its record, open and locked.
    """

    path: Path
    descriptor: int

    def __del__(self) -> None:
        os.close(self.descriptor)


def hold_newest(folder: Path) -> Held | None:
    """The newest stage of that name, held; None where there is none."""
    while (newest := _newest(folder)) is not None:
        if (held := _held(newest, fcntl.LOCK_SH)) is not None:
            return held
        time.sleep(MOVED_S)
    return None


def put(partial: Path, folder: Path) -> Held:
    """Give a finished folder the name `folder`, or one beside it where somebody reads what is there, and hold it.

    The caller is the only maker of this stage.
    """
    if not (folder / RECORD).exists():
        shutil.rmtree(folder, ignore_errors=True)  # it lost its record and is no stage
    older = _generations(folder)
    target = folder if not older else folder.with_name(f"{folder.name}{AGAIN}{_number(older[-1]) + 1}")
    os.replace(partial, target)
    for old in older:
        _remove(old)
    if target != folder and not folder.exists() and (held := _held(target, fcntl.LOCK_EX)) is not None:
        os.replace(target, folder)
        del held
    return hold_newest(folder)


def _newest(folder: Path) -> Path | None:
    """Twice, since a maker may add one and remove another while the names are read."""
    found = _generations(folder) or _generations(folder)
    return found[-1] if found else None


def _generations(folder: Path) -> list[Path]:
    """All finished stages of that name, the oldest first."""
    beside = [path for path in folder.parent.glob(f"{folder.name}{AGAIN}*") if path.name.rpartition("-")[2].isdigit()]
    return [path for path in (folder, *sorted(beside, key=_number)) if (path / RECORD).exists()]


def _number(folder: Path) -> int:
    return int(folder.name.rpartition(AGAIN)[2]) if AGAIN in folder.name else 0


def _held(folder: Path, how: int) -> Held | None:
    """The stage under a lock; None where another lock stands against it, or it went away meanwhile.

    On a file system without such locks everybody may read and nothing is removed.
    """
    try:
        # some network file systems lock by oneself only what is open for writing
        held = Held(folder, os.open(folder / RECORD, os.O_RDWR if how == fcntl.LOCK_EX else os.O_RDONLY))
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held.descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if how == fcntl.LOCK_EX or isinstance(error, BlockingIOError):
            return None
    try:
        there = os.path.samestat(os.fstat(held.descriptor), os.stat(folder / RECORD))
    except FileNotFoundError:
        return None
    return held if there else None


def _remove(folder: Path) -> None:
    """Unless somebody reads it. Under the name of something unfinished, so that the next maker sweeps up after a kill."""
    if (held := _held(folder, fcntl.LOCK_EX)) is None:
        return
    gone = folder.with_name(f"{folder.name.partition('.')[0]}.partial-{os.getpid()}-{_number(folder)}")
    os.replace(folder, gone)
    del held
    shutil.rmtree(gone)
