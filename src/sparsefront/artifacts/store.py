"""Stages stored on disk under the digest of their cache key.

    <root>/<stage>/<key>/             a finished stage: whatever it wrote, plus determined_by.json, with a checksum of each file
    <root>/<stage>/<key>.again-<n>/   the same, made again while a process read it: see `generations`
    <root>/<stage>/<key>.partial-<process>  work in progress; becomes <key> by one rename. A failing maker removes it; what a
                                      killed one left is removed by the next run (`artifacts.store`)
    <root>/<stage>/<key>.unfinished/  what a maker left for the next one to resume from, should it be killed

A stage is there whole or not at all, so a process killed at any instant loses only the stage that it was in, and of a
training no more than an epoch. A stage whose files are not what was stored is reported and made again. The time of a stage's
folder is that of its last use.

A process holds what it makes alone and what it uses with others, by leases (`artifacts.lease`) that work between the hosts of a
shared file system and end with it. Others wait for a maker, then find the stage finished; nobody removes what is used. A maker
that was taken for dead, because its host slept, and goes on: what it made is discarded, and it uses what its successor makes.
Only a run that needs the same stage can be its successor: others leave what it made and what it reads for a day.
"""

import errno
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.content_digest import are_checksums, checksums, digest, find_damage
from sparsefront.artifacts.durable import PARTIAL, below, noting_free_space, rename_synced, require_readable, sync_tree
from sparsefront.artifacts.lease import (
    GONE_S,
    Lease,
    hold_alone,
    hold_shared,
    hold_when_free,
    process_tag,
    remove_dead,
    require_all,
    working_under,
)
from sparsefront.errors import InvalidSetting
from sparsefront.progress import working_time

# What lies beside the files of a finished stage: seconds, its cache key, and the checksum of each file.
#
# Also `used`: the keys of the stages that its run had used until then, so that it is known what a result needs even
# where a stage between was removed.

RECORD = "determined_by.json"  # the last file that is written: a folder that has it is whole
_sound: set[tuple] = set()  # stages that this process has read whole, or made: they are not read again for a check


def write_record(folder: Path, seconds: float, cache_key: dict[str, Any], *, used: Iterable[str] = ()) -> None:
    """Of a stage whose files are all written."""
    content = {"seconds": seconds, "determined_by": cache_key, "used": sorted(used), "files": checksums(folder)}
    (folder / RECORD).write_text(json.dumps(content, indent=2, default=str), encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """seconds, determined_by, and files, which stages of earlier versions lack.

    Raises:
        ValueError: it cannot be read; says why.
    """
    try:
        record = read_json_bounded(folder / RECORD, finite=False)  # a setting may be infinite
    except ValueError as error:
        raise ValueError(f"{RECORD} cannot be read ({error})") from None
    if (fault := _fault(record)) is not None:
        raise ValueError(f"{RECORD} cannot be read ({fault})")
    return record


def _fault(record: Any) -> str | None:
    """What keeps JSON content from being a record, first of all."""
    if not isinstance(record, dict) or "determined_by" not in record:
        return "it has no determined_by"
    seconds, used = record.get("seconds"), record.get("used", [])
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not math.isfinite(seconds) or seconds < 0:
        return f"its seconds are {seconds!r}"
    if not isinstance(used, list) or not all(isinstance(key, str) for key in used):
        return "its used is no list of keys"
    return None if are_checksums(record.get("files", {})) else "its files have no checksums"


def damage_of(folder: Path) -> str | None:
    """Which file of a finished stage is not what was stored, and how; None where all are, as far as checksums are known."""
    try:
        if _version(folder) in _sound:
            return None
        damage = find_damage(folder, read_record(folder).get("files", {}))
    except (OSError, ValueError) as error:
        return str(error)
    if damage is None:
        mark_sound(folder)
    return damage


def mark_sound(folder: Path) -> None:
    """Of a stage that this process has made."""
    _sound.add(_version(folder))


def _version(folder: Path) -> tuple:
    """Tells a stage from another one that took its place."""
    found = (folder / RECORD).stat()
    return folder.resolve(), found.st_ino, found.st_mtime_ns


# A finished stage that is made again while others read it.
#
#     <key>          a finished stage
#     <key>.again-1  made again while a process read <key>; the highest number counts
#
# A process that uses a stage holds a shared lease on it (`artifacts.lease`), which ends with the process, however it
# ends. A stage that no process reads is replaced under its own name. One that is read stays where it is, the new one
# lies beside it, and the next process that makes the stage removes it. No process ever waits, so that no two runs
# wait for each other.

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
    target = folder if not older else folder.with_name(f"{folder.name}{AGAIN}{generation_number(older[-1]) + 1}")
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
    return [path for path in (folder, *sorted(beside, key=generation_number)) if (path / RECORD).exists()]


def generation_number(folder: Path) -> int:
    """How often the stage was made again while a process read the one before."""
    return int(folder.name.rpartition(AGAIN)[2]) if AGAIN in folder.name else 0


def _remove(folder: Path) -> None:
    """Unless a process reads it, or may wake and read it. Under the name of something unfinished, so that the next maker sweeps
    up after a kill.
    """
    if (hold := hold_alone(folder, lapses_s=GONE_S)) is None:
        return
    gone = folder.with_name(f"{folder.name.partition('.')[0]}.partial-{process_tag()}-{generation_number(folder)}")
    os.replace(folder, gone)
    hold.release()
    shutil.rmtree(gone)


# What killed processes left in the cache: half-written, half-removed, or held.

log = logging.getLogger(__name__)
REMOVED = ".removed-"  # in the name of a stage that is being removed: renamed first, so that it is never half there


def remove_leftovers(root: Path) -> list[Path]:
    """Remove what no process works on any more: none holds it, and none of another host held it within a day, which may only
    sleep. What a later run can resume from (`.unfinished`) stays.

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
        return json.loads((self.path / name).read_text(encoding="utf-8"))


@dataclass(eq=False)
class Making:
    """A stage in the making.

    Args:
        folder: for its files; there, and empty.
        earlier_seconds: what killed makers spent on what this one went on from; the maker sets it.
    """

    folder: Path
    earlier_seconds: float = 0.0


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
        self._held_to_make: dict[Path, Lease] = {}
        self._made: dict[Path, Artifact] = {}  # by this process, until `get` gives it

    def __enter__(self) -> "ArtifactStore":
        return self

    def __exit__(self, *_: object) -> None:
        """The stages that were used are held no longer."""
        for held in self._used.values():
            if held.hold is not None:
                held.hold.release()
        for lease in self._held_to_make.values():
            lease.release()
        for kept in (self._used, self._made, self._held_to_make):
            kept.clear()

    def find(self, kind: str, cache_key: dict[str, Any], *, stage: str | None = None) -> Artifact | None:
        """The finished stage, or None: it was never made, it is damaged (reported on the terminal), or it is to be made again."""
        key = digest(cache_key)
        folder = self.root / kind / key
        again = not self.reuse and (stage or kind) in self.runnable
        return None if again else self._usable(folder, key)

    def unfinished(self, kind: str, cache_key: dict[str, Any]) -> Path:
        """Where the maker of a stage keeps what a later one can resume from; gone once the stage is finished."""
        return self.root / kind / f"{digest(cache_key)}.unfinished"

    def get(self, kind: str, cache_key: dict[str, Any], *, stage: str | None = None) -> Artifact | None:
        """The finished stage; None where it is missing: this process then holds it, and makes it in `making`.

            while (masks := store.get("prune", key)) is None:
                with store.making("prune", key) as new:
                    ...  # writes files into new.folder

        It waits for another process that makes it. A loop, since a process that slept too long loses the stage to another one,
        and finds what that one made.

        Args:
            kind: folder name below the root.
            stage: the entry of root key `stages` that allows making it; None = the one called `kind`.
            cache_key: JSON-able; equal content means an equal stage.
        Raises:
            InvalidSetting: it is not there and `stages` does not allow making it, or this user may not read it.
        """
        key = digest(cache_key)
        folder = self.root / kind / key
        if (made := self._made.pop(folder, None)) is not None:
            return made
        stage = stage or kind
        if (found := self.find(kind, cache_key, stage=stage)) is not None:
            return found
        if stage not in self.runnable:
            raise InvalidSetting(
                "stages", list(self.runnable), self._why_absent(folder, kind, stage) + f": add {stage} to stages"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        what = f"{kind} {key}"
        lease = hold_when_free(maker_of(folder), lambda: log.info("waiting for another run that makes %s", what))
        self._held_to_make[folder] = lease
        # Another process may have finished it while we waited.
        if (found := self.find(kind, cache_key, stage=stage)) is not None:
            self._held_to_make.pop(folder).release()
            return found
        if folder in self._damaged:
            log.info("discarded, and made again: %s", folder)
        return None

    def is_made_elsewhere(self, kind: str, cache_key: dict[str, Any]) -> bool:
        """Whether another process is making the stage, so that `get` would wait."""
        if (free := hold_alone(maker_of(self.root / kind / digest(cache_key)))) is None:
            return True
        free.release()
        return False

    @contextmanager
    def making(self, kind: str, cache_key: dict[str, Any]) -> Iterator[Making]:
        """Around the code that writes the files of a stage that `get` gave to this process; at its end the stage is finished.

        Where the code fails nothing is left. Where this process lost the stage to another one meanwhile, a warning says so.
        """
        key = digest(cache_key)
        folder = self.root / kind / key
        with working_under(self._held_to_make.pop(folder)) as lease:
            try:
                with self._partial_folder(folder) as partial:
                    with noting_free_space(folder.parent):
                        partial.mkdir()
                        start, new = working_time(), Making(partial)
                        yield new
                        seconds = new.earlier_seconds + working_time() - start
                        write_record(partial, seconds, cache_key, used=self._used)
                        sync_tree(partial)
                    lease.require()
                    held = put(partial, folder)
            except Exception as error:
                lease.beat()
                if not lease.lost:  # of whatever kind: the successor removed what it wrote to
                    raise
                log.warning("%s %s: %s", kind, key, error)
        if lease.lost:
            require_all()  # where the whole run was followed, it ends here
            return
        mark_sound(held.path)
        self._used[key] = held
        self._made[folder] = Artifact(held.path, key, reused=False, seconds=seconds, held=held)

    @contextmanager
    def _partial_folder(self, folder: Path) -> Iterator[Path]:
        """The folder that a maker writes to, which becomes the stage's or is removed."""
        key = folder.name
        for left_over in folder.parent.glob(f"{key}.partial-*"):  # of killed makers: we hold the stage
            shutil.rmtree(left_over, ignore_errors=True)  # one that slept may write to it at this moment
        partial, unfinished = folder.with_name(f"{key}.partial-{process_tag()}"), folder.with_name(f"{key}.unfinished")
        if not self.reuse:
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        shutil.rmtree(unfinished, ignore_errors=True)

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
