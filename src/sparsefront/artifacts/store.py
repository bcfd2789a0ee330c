"""Stages stored on disk under the digest of what determines them.

    <root>/<stage>/<key>/             a finished stage: whatever it wrote, plus determined_by.json
    <root>/<stage>/<key>.again-<n>/   the same, made again while somebody read it: see `generations`
    <root>/<stage>/<key>.lock         held while somebody makes it; others wait, then find it finished
    <root>/<stage>/<key>.partial-<pid>  work in progress; becomes <key> by one rename, or is swept away by the next maker
    <root>/<stage>/<key>.unfinished/  what a maker left for the next one to go on from, should it be killed

A stage is there whole or not at all, so a process killed at any instant loses only the stage that it was in, and of a
training no more than an epoch.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sparsefront.artifacts.digest import digest
from sparsefront.artifacts.generations import RECORD, Held, hold_newest, put
from sparsefront.errors import InvalidSetting

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """A finished stage.

    Args:
        path: its folder; read-only by convention.
        key: digest of what determines it.
        reused: found finished, rather than made by this call.
        seconds: what making it took, whoever made it, with what killed makers left finished.
        held: keeps it from being removed for as long as this object lives.
    """

    path: Path
    key: str
    reused: bool
    seconds: float
    held: Held | None = field(default=None, repr=False, compare=False)

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())


class ArtifactStore:
    """Makes each stage once.

    Args:
        root: folder of all stages.
        runnable: the stages that this run may make; another one must be there already.
        reuse: False makes every runnable stage again and replaces what was there.
    """

    def __init__(self, root: Path, *, reuse: bool, runnable: tuple[str, ...]) -> None:
        self.root, self.reuse, self.runnable = root, reuse, runnable

    def find(self, kind: str, determines: dict[str, Any], *, stage: str | None = None) -> Artifact | None:
        """The finished stage, or None: nobody made it, or it is to be made again."""
        key = digest(determines)
        folder = self.root / kind / key
        again = not self.reuse and (stage or kind) in self.runnable
        return None if again else self._finished(folder, key)

    def unfinished(self, kind: str, determines: dict[str, Any]) -> Path:
        """Where the maker of a stage keeps what a later one can go on from; gone once the stage is finished."""
        return self.root / kind / f"{digest(determines)}.unfinished"

    def obtain(
        self, kind: str, determines: dict[str, Any], make: Callable[[Path], float | None], *, stage: str | None = None
    ) -> Artifact:
        """The finished stage, made now if nobody has.

        Args:
            kind: folder name below the root.
            stage: the entry of root key `stages` that allows making it; None = the one called `kind`.
            determines: JSON-able; equal content means an equal stage.
            make: writes the stage's files into the folder that it is given; may return the seconds that killed makers
                spent on what it went on from.
        Raises:
            InvalidSetting: it is not there and `stages` does not allow making it.
        """
        key = digest(determines)
        folder = self.root / kind / key
        stage = stage or kind
        found = self.find(kind, determines, stage=stage)
        if found is not None:
            return found
        if stage not in self.runnable:
            raise InvalidSetting(
                "stages",
                list(self.runnable),
                f"stage {stage} was never finished for this configuration: add {stage} to stages",
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _held(FileLock(f"{folder}.lock"), f"{kind} {key}"):
            found = self.find(kind, determines, stage=stage)  # another process may have finished it while we waited
            return found if found is not None else self._make(folder, key, determines, make)

    def _make(
        self, folder: Path, key: str, determines: dict[str, Any], make: Callable[[Path], float | None]
    ) -> Artifact:
        for left_over in folder.parent.glob(f"{key}.partial-*"):  # of killed makers: we hold the lock
            shutil.rmtree(left_over)
        partial, unfinished = folder.with_name(f"{key}.partial-{os.getpid()}"), folder.with_name(f"{key}.unfinished")
        if not self.reuse:
            shutil.rmtree(unfinished, ignore_errors=True)
        partial.mkdir()
        start = time.perf_counter()
        earlier_seconds = make(partial) or 0.0
        record = {"seconds": earlier_seconds + time.perf_counter() - start, "determined_by": determines}
        (partial / RECORD).write_text(json.dumps(record, indent=2, default=str))
        held = put(partial, folder)
        shutil.rmtree(unfinished, ignore_errors=True)
        return Artifact(held.path, key, reused=False, seconds=record["seconds"], held=held)

    def _finished(self, folder: Path, key: str) -> Artifact | None:
        if (held := hold_newest(folder)) is None:
            return None
        seconds = json.loads((held.path / RECORD).read_text())["seconds"]
        return Artifact(held.path, key, reused=True, seconds=seconds, held=held)


@contextmanager
def _held(lock: FileLock, what: str) -> Iterator[None]:
    """The lock, with one line on the terminal where another process holds it."""
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        log.info("waiting for another run that makes %s", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
