"""The journal of a study: Optuna's file, to which each thing that happens adds a line.

A full disk, or a kill, may leave half a line at its end. Optuna passes over that when it reads, but would append its next line
to it, and could read neither from then on. Here half a line is cut off, with a warning, before anything follows it. What it
said had not happened yet for anybody: a point that was being asked for or told is asked for again, and a finished run is shown
again from the store.
"""

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sparsefront.artifacts.lease import LeaseLost, held_alone
from sparsefront.errors import Obstacle

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

log = logging.getLogger(__name__)
SUFFIX = ".journal"
BLOCK = 2**16  # bytes that are read at once from the end


def open_journal(journal: Path, before_each_line: Callable[[], None]) -> "JournalStorage":
    """Optuna's storage in a journal, which is made where it is missing; what was half-written at its end is cut off.

    Args:
        before_each_line: raises where nothing may be appended.
    Raises:
        Obstacle: a line of the journal is damaged.
        OSError: it cannot be read or written.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if journal.exists():
        with held_alone(journal):
            _require_sound(journal)
    return JournalStorage(JournalFileBackend(str(journal), lock_obj=_Lock(journal, before_each_line)))


class _Lock:
    """Held while a line is appended. Optuna's own one stays for half a minute where its holder is killed."""

    def __init__(self, journal: Path, before_each_line: Callable[[], None]) -> None:
        self._journal, self._before_each_line = journal, before_each_line

    def acquire(self) -> bool:
        self._held = held_alone(self._journal)
        self._lease = self._held.__enter__()
        try:
            self._before_each_line()
            cut_half_line(self._journal)
        except BaseException:
            self._held.__exit__(None, None, None)
            raise
        return True

    def release(self) -> None:
        try:
            with suppress(LeaseLost):  # what is half-written there now is another process's
                self._lease.require()
                cut_half_line(self._journal)  # the disk was full
        finally:
            self._held.__exit__(None, None, None)


def cut_half_line(journal: Path) -> None:
    """End a journal after its last whole line. The caller holds it."""
    with suppress(FileNotFoundError), journal.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        whole = _end_of_last_line(file, size)
        if whole < size:
            _cut(file, journal, whole, size)


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    """Bytes up to and with the last line end; 0 where there is none."""
    end = size
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _require_sound(journal: Path) -> None:
    """Every line can be read; a last one that cannot was never read by anybody, and is cut off."""
    cut_half_line(journal)
    with journal.open("rb+") as file:
        lines = file.readlines()
        damaged = [number for number, line in enumerate(lines, start=1) if not _is_record(line)]
        if damaged and damaged[0] == len(lines):
            size = file.tell()
            _cut(file, journal, size - len(lines[-1]), size)
        elif damaged:
            before = damaged[0] - 1
            raise Obstacle(
                f"{journal}, line {damaged[0]}",
                None,
                f"is damaged, so this study cannot be read: keep the {before} lines before it (head -n {before}), and what they"
                " lack is asked for again, its finished runs shown from the store; or name another hydra.sweeper.study",
            )


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _cut(file: BinaryIO, journal: Path, whole: int, size: int) -> None:
    file.truncate(whole)
    os.fsync(file.fileno())
    why = "left by a full disk or a killed process"
    told = f"%s ended in half a line, {why}: its %d bytes were dropped, and what they said is done again"
    log.warning(told, journal, size - whole)
