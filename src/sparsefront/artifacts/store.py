"""Stages stored on disk under the digest of their cache key.

    <root>/<stage>/<key>/             a finished stage: whatever it wrote, plus determined_by.json, with a checksum of each file
    <root>/<stage>/<key>.again-<n>/   the same, made again while a process read it: see `generations`
    <root>/<stage>/<key>.partial-<process>  work in progress; becomes <key> by one rename. A failing maker removes it; what a
                                      killed one left is removed by the next run (`artifacts.leftovers`)
    <root>/<stage>/<key>.unfinished/  what a maker left for the next one to go on from, should it be killed

A stage is there whole or not at all, so a process killed at any instant loses only the stage that it was in, and of a
training no more than an epoch. A stage whose files are not what was stored is reported and made again. The time of a stage's
folder is that of its last use.

A process holds what it makes alone and what it uses with others, by leases (`artifacts.lease`) that work between the hosts of a
shared file system and end with it. Others wait for a maker, then find the stage finished; nobody removes what is used. A maker
that was taken for dead, because its host slept, and goes on: what it made is discarded, and it uses what its successor makes.
Only a run that needs the same stage can be its successor: others leave what it made and what it reads for a day.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.access import require_readable
from sparsefront.artifacts.digest import digest
from sparsefront.artifacts.disk_space import noting_free_space
from sparsefront.artifacts.durable import sync_tree
from sparsefront.artifacts.generations import Held, hold_newest, maker_of, put
from sparsefront.artifacts.lease import Lease, held_alone, hold_alone, require_all
from sparsefront.artifacts.owner import process_tag
from sparsefront.artifacts.record import damage_of, mark_sound, read_record, write_record
from sparsefront.errors import InvalidSetting
from sparsefront.time_use import working_time

log = logging.getLogger(__name__)
ANOTHER_CACHE = "name another cache_dir"


@dataclass(frozen=True)
class Artifact:
    """A finished stage.

    Args:
        path: its folder; read-only by convention.
        key: digest of its cache key.
        reused: found finished, rather than made by this call.
        seconds: what making it took, in whichever process, without waits, with what killed makers left finished.
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
        self._used: dict[str, Held] = {}  # by key; held until the run ends, whatever happens to the `Artifact`
        self._damaged: dict[Path, str] = {}

    def __enter__(self) -> "ArtifactStore":
        return self

    def __exit__(self, *_: object) -> None:
        """The stages that were used are held no longer."""
        for held in self._used.values():
            if held.hold is not None:
                held.hold.release()
        self._used.clear()

    def find(self, kind: str, cache_key: dict[str, Any], *, stage: str | None = None) -> Artifact | None:
        """The finished stage, or None: it was never made, it is damaged (reported on the terminal), or it is to be made again."""
        key = digest(cache_key)
        folder = self.root / kind / key
        again = not self.reuse and (stage or kind) in self.runnable
        return None if again else self._usable(folder, key)

    def unfinished(self, kind: str, cache_key: dict[str, Any]) -> Path:
        """Where the maker of a stage keeps what a later one can go on from; gone once the stage is finished."""
        return self.root / kind / f"{digest(cache_key)}.unfinished"

    def get_or_create(
        self, kind: str, cache_key: dict[str, Any], make: Callable[[Path], float | None], *, stage: str | None = None
    ) -> Artifact:
        """The finished stage, made now if it is missing.

        Args:
            kind: folder name below the root.
            stage: the entry of root key `stages` that allows making it; None = the one called `kind`.
            cache_key: JSON-able; equal content means an equal stage.
            make: writes the stage's files into the folder that it is given; may return the seconds that killed makers
                spent on what it went on from.
        Raises:
            InvalidSetting: it is not there and `stages` does not allow making it, or this user may not read it.
        """
        key = digest(cache_key)
        folder = self.root / kind / key
        stage = stage or kind
        found = self.find(kind, cache_key, stage=stage)
        if found is not None:
            return found
        if stage not in self.runnable:
            raise InvalidSetting(
                "stages",
                list(self.runnable),
                self._why_absent(folder, kind, stage) + f": add {stage} to stages",
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        what = f"{kind} {key}"
        while True:
            with held_alone(maker_of(folder), lambda: log.info("waiting for another run that makes %s", what)) as lease:
                found = self.find(kind, cache_key, stage=stage)  # another process may have finished it while we waited
                if found is not None:
                    return found
                if folder in self._damaged:
                    log.info("discarded, and made again: %s", folder)
                try:
                    return self._make(folder, key, cache_key, make, lease)
                except Exception as error:
                    lease.beat()
                    if not lease.lost:  # of whatever kind: the successor removed what it wrote to
                        raise
                    log.warning("%s: %s", what, error)
            require_all()  # where the whole run was followed, it ends here

    def unless_busy(
        self, kind: str, cache_key: dict[str, Any], make: Callable[[Path], float | None], *, stage: str | None = None
    ) -> Artifact | None:
        """As `get_or_create`, but None at once where another process is making it: there is other work to do meanwhile."""
        if (free := hold_alone(maker_of(self.root / kind / digest(cache_key)))) is None:
            return None
        free.release()
        return self.get_or_create(kind, cache_key, make, stage=stage)

    def _make(
        self,
        folder: Path,
        key: str,
        cache_key: dict[str, Any],
        make: Callable[[Path], float | None],
        lease: Lease,
    ) -> Artifact:
        for left_over in folder.parent.glob(f"{key}.partial-*"):  # of killed makers: we hold the stage
            shutil.rmtree(left_over, ignore_errors=True)  # one that slept may write to it at this moment
        partial, unfinished = folder.with_name(f"{key}.partial-{process_tag()}"), folder.with_name(f"{key}.unfinished")
        if not self.reuse:
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            with noting_free_space(folder.parent):
                partial.mkdir()
                start = working_time()
                earlier_seconds = make(partial) or 0.0
                seconds = earlier_seconds + working_time() - start
                write_record(partial, seconds, cache_key, used=self._used)
                sync_tree(partial)
            lease.require()
            held = put(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        shutil.rmtree(unfinished, ignore_errors=True)
        mark_sound(held.path)
        self._used[key] = held
        return Artifact(held.path, key, reused=False, seconds=seconds, held=held)

    def _usable(self, folder: Path, key: str) -> Artifact | None:
        """The newest stage of that name, with every file as it was stored; None where there is none, or it is damaged.

        Raises:
            Obstacle: another user has made it, and keeps it to themselves: it is neither damaged nor ours to replace.
        """
        require_readable(folder, otherwise=ANOTHER_CACHE)
        if (held := hold_newest(folder)) is None:
            return None
        require_readable(held.path, otherwise=ANOTHER_CACHE)
        if (damage := damage_of(held.path)) is not None:
            if folder not in self._damaged:
                log.warning("damaged, and not used: %s: %s", held.path, damage)
            self._damaged[folder] = f"{held.path}: {damage}"
            return None
        with suppress(OSError):  # of somebody else, or read-only: only its time of last use is not known then
            os.utime(held.path)
        self._used[key] = held
        return Artifact(held.path, key, reused=True, seconds=read_record(held.path)["seconds"], held=held)

    def _why_absent(self, folder: Path, kind: str, stage: str) -> str:
        """`kind` tells apart what one stage makes: the masks may be there, and the times of a search for them not."""
        what = f"stage {stage}" if kind == stage else f"{kind}, which stage {stage} makes,"
        if folder in self._damaged:
            return f"{what} is damaged ({self._damaged[folder]})"
        return f"{what} was never finished for this configuration"
