"""The folder of one run among the results: marked while it lasts, gone when it held nothing, with a link to the checkpoint."""

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsefront.artifacts.disk_space import free_bytes, in_units
from sparsefront.artifacts.durable import PARTIAL, whole_file
from sparsefront.artifacts.lease import ALONE, GONE_S, hold_in, working_under
from sparsefront.errors import InvalidSetting

log = logging.getLogger(__name__)
RUNNING, RESULT_FILE, FAILURE_FILE = ".running", "row.json", "failure.json"
KILLED = "the process was killed; what it had finished is stored, and a run with the same settings goes on from there"

LEAST_FREE_BYTES = 2**18  # for Hydra's files, the log and a result


def make_writable(results_dir: str, folder: Path) -> None:
    """Make the folder of a run or a sweep.

    Args:
        results_dir: the setting that it lies below, for the message.
    Raises:
        InvalidSetting: it names no folder, or one where no result could be written.
    """
    if not results_dir:  # folders of runs would lie at the root of the disk
        raise InvalidSetting("results_dir", "", "names no folder; the folder you stand in is .")
    try:
        if (free := free_bytes(folder)) < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {in_units(free)} free")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"no permission to write in {folder}")
    except OSError as error:
        allowed = f"cannot be written ({error.strerror or error}); name another folder"
        raise InvalidSetting("results_dir", results_dir, allowed) from error


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """Marks the folder of a run as in use, until the block ends or the process dies: by leases in its folder .running.

    A process of another machine that slept is followed by one that is started in the same folder, and by no other:
    `lease.require_all` tells it. What others made of its folder after a day is undone: it is there, and no failure.
    """
    while (lease := hold_in(folder / RUNNING, ALONE)) is None:  # a run that closes others looks at it for a moment
        time.sleep(0.01)
    lease.renews = True
    with working_under(lease):
        (folder / FAILURE_FILE).unlink(missing_ok=True)  # of a job that was killed here and is started again
        yield
        if not lease.lost:
            (folder / FAILURE_FILE).unlink(missing_ok=True)


def record_failure(folder: Path, error: BaseException) -> None:
    """Why a run ended without a result, in its folder. A full disk does not hide the error that it comes after."""
    message = str(error) or {"KeyboardInterrupt": "interrupted"}.get(type(error).__name__, "")
    with suppress(OSError):
        _write_failure(folder, type(error).__name__, message)


def discard_if_empty(folder: Path, *, log_counts: bool) -> bool:
    """Remove a run's folder that holds nothing but its configuration, and the folder of results where that was all.

    Args:
        log_counts: a log with a line in it is worth keeping.
    Returns:
        whether it was removed.
    """
    for path in folder.iterdir():
        is_log = path.suffix == ".log" and not (log_counts and path.stat().st_size)
        if not is_log and path.name not in (".hydra", RUNNING, FAILURE_FILE):
            return False
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are in there
        folder.parent.rmdir()
    return True


def close_killed_runs(results: Path) -> None:
    """Of runs whose process is dead: what was half-written is removed, and a folder without a result says why. One of another
    machine, which may only sleep, is dead after a day.

    Args:
        results: the folder of results; the points of sweeps lie one level deeper.
    """
    for outer in _folders_in(results):
        for folder in (outer, *_folders_in(outer)):
            marker = folder / RUNNING
            with suppress(OSError):  # another run does the same at this moment, or the folder belongs to another user
                if marker.is_dir():
                    _close_killed_run(marker)


def _folders_in(folder: Path) -> list[Path]:
    """Without hidden ones, such as leases, which come and go; none where the folder is gone at this moment."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return []


def _close_killed_run(marker: Path) -> None:
    lease = hold_in(marker, ALONE, create=False, lapses_s=GONE_S)
    if lease is None:  # it runs, or its folder was discarded at this moment
        return
    try:
        if not lease.took_over:  # its run ends, or begins, at this moment
            return
        folder = marker.parent
        for path in folder.rglob(f"{PARTIAL}*"):
            path.unlink(missing_ok=True)
        if not (folder / RESULT_FILE).exists() and not discard_if_empty(folder, log_counts=True):
            _write_failure(folder, "Killed", KILLED)
    finally:
        lease.release()


def _write_failure(folder: Path, error: str, message: str) -> None:
    with whole_file(folder / FAILURE_FILE) as file:
        file.write_text(json.dumps({"error": error, "message": message}))


LINK, PATH_FILE = "checkpoint", "checkpoint.txt"


def link_checkpoint(checkpoint: Path, directory: Path) -> str:
    """Put a link to the checkpoint into a run's folder: `checkpoint`, or `checkpoint.txt` with its path where links cannot be.

    The link is relative where both lie below the working directory, so that a project can be moved as a whole.

    Args:
        checkpoint: folder of an export.
    Returns:
        what to tell the user: the checkpoint's path, or that it was removed since, where nothing is linked.
    """
    if not checkpoint.is_dir():
        return f"not stored any more ({checkpoint}); reuse=false makes it again"
    inside = all(path.resolve().is_relative_to(Path.cwd()) for path in (checkpoint, directory))
    target = os.path.relpath(checkpoint.resolve(), directory.resolve()) if inside else checkpoint.resolve()
    link = directory / LINK
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(target, target_is_directory=True)
    except OSError:
        (directory / PATH_FILE).write_text(f"{checkpoint.resolve()}\n")
    return str(checkpoint)
