"""Store stages on disk under the digest of their cache key.

    <root>/<stage>/<key>/             a finished stage: its files, plus determined_by.json, with a checksum of each file
    <root>/<stage>/<key>.again-<n>/   the same, made again while a process read it: see `_generations`
    <root>/<stage>/<key>.partial-<process>  work in progress; renamed to <key> at the end. Removed on failure; after a kill,
                                      removed by the next run
    <root>/<stage>/<key>.unfinished/  state from which the next maker resumes after a kill

Stages are atomic: a process killed at any time loses only its current stage, and of a training at most an epoch. Damaged
stages are reported and made again. The modification time of a stage's folder is that of its last use.

A process holds what it makes exclusively and what it uses shared, by leases (`artifacts.lease`) that work across hosts of a
shared file system and end with the process. Others wait for a maker and then find the stage finished; nothing in use is
removed. If a maker was considered dead because its host was suspended, and continues, its work is discarded and it uses that
of its successor. Only a run that needs the same stage can be its successor: others leave what it makes and reads for a day.
"""

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.content_digest import checksums, digest, find_damage
from sparsefront.artifacts.durable import (
    PARTIAL,
    below,
    naming_full_disk,
    rename_synced,
    require_readable,
    sync_tree,
    unique,
)
from sparsefront.artifacts.lease import (
    GONE_S,
    Lease,
    hold_alone,
    hold_shared,
    hold_when_free,
    remove_dead,
    require_all,
    working_under,
)
from sparsefront.errors import InvalidSetting
from sparsefront.progress import working_time

# The record of a finished stage: seconds, its cache key, the checksum of each file, and `used`: the keys of all stages that its
# run had used until then, to know what a result needs even if a stage in between was removed.

RECORD = "determined_by.json"  # written last: a folder that has it is complete
_sound: set[tuple] = set()  # stages that this process has verified, or made


def write_record(folder: Path, seconds: float, cache_key: dict[str, Any], *, used: Iterable[str] = ()) -> None:
    """Write the record of a stage after all of its files."""
    content = {"seconds": seconds, "determined_by": cache_key, "used": sorted(used), "files": checksums(folder)}
    content = json.loads(json.dumps(content, default=str))  # as it is read
    (folder / RECORD).write_text(json.dumps(content | {"digest": digest(content)}, indent=2), encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """seconds, determined_by, used, files and a digest of all that (missing in stages of earlier versions).

    Raises:
        ValueError: it cannot be read; says why.
    """
    try:
        record = read_json_bounded(folder / RECORD, finite=False)  # settings may be infinite
        if not isinstance(record, dict) or "determined_by" not in record:
            raise ValueError("it has no determined_by")
        content = {name: value for name, value in record.items() if name != "digest"}
        if record.get("digest") not in (None, digest(content)):
            raise ValueError("it was changed after it was stored")
    except ValueError as error:
        raise ValueError(f"{RECORD} cannot be read ({error})") from None
    return record


def damage_of(folder: Path) -> str | None:
    """Which file of a finished stage was changed, and how; None if none was, as far as checksums exist."""
    try:
        if _version(folder) in _sound:
            return None
        damage = find_damage(folder, read_record(folder).get("files", {}))
    except (OSError, ValueError) as error:
        return str(error)
    if damage is None:
        _sound.add(_version(folder))
    return damage


def _version(folder: Path) -> tuple:
    """Distinguishes a stage from one that replaced it."""
    status = (folder / RECORD).stat()
    return folder.resolve(), status.st_ino, status.st_mtime_ns


# Generations: a finished stage that is made again while others read it.
#
#     <key>          a finished stage
#     <key>.again-1  made again while a process read <key>; the highest number counts
#
# A process holds a shared lease on each stage it uses, which ends with the process. A stage that is not in use is replaced under
# its own name. One in use stays, the new one is put next to it, and the next process that makes the stage removes it. Nobody
# waits, so two runs never wait for each other.

AGAIN = ".again-"
REMOVED = ".removed-"  # in names of stages being removed
MOVED_S = 0.01  # how long renaming a stage holds it exclusively


def maker_of(folder: Path) -> Path:
    """The path that the maker of a stage holds exclusively, without blocking readers of the stage."""
    return folder.with_name(f"{folder.name}.maker")


Held = tuple[Path, Lease | None]
"""A stage that is not removed while its lease lives; no lease without permission to write next to the stage."""


def hold_newest(folder: Path) -> Held | None:
    """The newest stage of that name, held; None if there is none."""
    while (stage := newest(folder)) is not None:
        try:
            lease = hold_shared(stage)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return stage, None
        # It may have been removed between the two calls: then the lease is on something that no other process finds.
        if lease is not None and (stage / RECORD).exists():
            return stage, lease
        del lease
        time.sleep(MOVED_S)
    return None


def put(partial: Path, folder: Path) -> Held:
    """Rename a finished folder to `folder`, or to a name next to it if the existing one is in use, and hold it.

    The caller must be the only maker of this stage.
    """
    if folder.is_file():
        folder.unlink()  # a file with the name of a stage
    elif not (folder / RECORD).exists():
        shutil.rmtree(folder, ignore_errors=True)  # without a record it is not a stage
    older = _generations(folder)
    target = folder if not older else folder.with_name(f"{folder.name}{AGAIN}{generation_number(older[-1]) + 1}")
    rename_synced(partial, target)
    for old in older:
        remove_unused(old)
    # The name without a number is the oldest.
    if target != folder and _generations(folder) == [target]:
        hold = hold_alone(target, lapses_s=GONE_S)
        if hold is not None:
            rename_synced(target, folder)
            hold.release()
    held = hold_newest(folder)
    assert held is not None, "only the maker removes it"
    return held


def newest(folder: Path) -> Path | None:
    """The newest stage of that name, which may vanish at any time; None if there is none."""
    for _ in range(5):  # a maker may add one and remove another during a listing
        generations = _generations(folder)
        if generations:
            return generations[-1]
    return None


def _generations(folder: Path) -> list[Path]:
    """All finished stages of that name, oldest first."""
    # One that is being removed ends with random digits: its number is no number.
    beside = [path for path in folder.parent.glob(f"{folder.name}{AGAIN}*") if path.name.rpartition(AGAIN)[2].isdigit()]
    return [path for path in (folder, *sorted(beside, key=generation_number)) if (path / RECORD).exists()]


def generation_number(folder: Path) -> int:
    """How often the stage was made again while its predecessor was in use."""
    return int(folder.name.rpartition(AGAIN)[2]) if AGAIN in folder.name else 0


def remove_unused(folder: Path) -> bool:
    """Remove a stage unless a process reads it, or may wake up and read it; returns whether it did. It is renamed first, so that
    no process finds half of it, and the next run cleans up after a kill.
    """
    hold = hold_alone(folder, lapses_s=GONE_S)
    if hold is None:
        return False
    aside = folder.with_name(f"{folder.name}{REMOVED}{unique()}")
    try:
        os.rename(folder, aside)
    finally:
        hold.release()
    shutil.rmtree(aside)
    return True


log = logging.getLogger(__name__)


def remove_leftovers(root: Path) -> list[Path]:
    """Remove partial work that no process holds, nor a process on another host within a day (it may be suspended). Resume state
    (`.unfinished`) is kept.

    Args:
        root: the cache folder.
    Returns:
        what was removed.
    """
    removed = []
    for path, target in _half_done(root):
        try:
            lease = hold_alone(target, lapses_s=GONE_S)
            if lease is None:  # in use, or its process may wake up
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            lease.release()
        except OSError:  # another run is removing it, or it belongs to another user
            continue
        removed.append(path)
    for folder in [*root.glob("*/.*.leases"), *below(root / "data", ".*.leases")]:
        with suppress(OSError):
            remove_dead(folder)
    if removed:
        log.info("removed what killed runs had left half-written: %s", ", ".join(map(str, removed)))
    return removed


def _half_done(root: Path) -> Iterator[tuple[Path, Path]]:
    """Partial folders of stages and partial files of prepared data, each with the path that its maker holds."""
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
        reused: found finished instead of made by this call.
        seconds: time to make it, in any process, excluding waits, including killed makers.
        held: prevents its removal during the lifetime of this object.
    """

    path: Path
    key: str
    reused: bool
    seconds: float
    held: Lease | None = field(default=None, repr=False, compare=False)

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))


@dataclass(eq=False)
class Making:
    """A stage being made.

    Args:
        folder: for its files; exists and is empty.
        earlier_seconds: time of killed makers from which this one resumed; set by the maker.
    """

    folder: Path
    earlier_seconds: float = 0.0


class ArtifactStore:
    """Makes each stage once.

    Args:
        root: folder of all stages.
        runnable: the stages that this run may make; others must already exist.
        reuse: False makes every runnable stage again, replacing existing ones.
    """

    def __init__(self, root: Path, *, reuse: bool, runnable: tuple[str, ...]) -> None:
        self.root, self.reuse, self.runnable = root, reuse, runnable
        self._used: dict[str, Lease | None] = {}  # by key; held until the run ends, regardless of the `Artifact`
        self._damaged: dict[Path, str] = {}
        self._held_to_make: dict[Path, Lease] = {}
        self._made: dict[Path, Artifact] = {}  # made by this process, until `get` returns it

    def __enter__(self) -> "ArtifactStore":
        return self

    def __exit__(self, *_: object) -> None:
        """Release the stages that were used."""
        for lease in filter(None, (*self._used.values(), *self._held_to_make.values())):
            lease.release()
        for mapping in (self._used, self._made, self._held_to_make):
            mapping.clear()

    def find(self, kind: str, cache_key: dict[str, Any], *, stage: str | None = None) -> Artifact | None:
        """The finished stage; None if it was never made, is damaged (which is logged), or should be made again."""
        key = digest(cache_key)
        folder = self.root / kind / key
        again = not self.reuse and (stage or kind) in self.runnable
        return None if again else self._usable(folder, key)

    def locate_unfinished(self, kind: str, cache_key: dict[str, Any]) -> Path:
        """Folder for the resume state of a stage; removed once the stage is finished."""
        return self.root / kind / f"{digest(cache_key)}.unfinished"

    def get(self, kind: str, cache_key: dict[str, Any], *, stage: str | None = None) -> Artifact | None:
        """The finished stage; None if it is missing: this process then holds it and makes it in `making`.

            while (masks := store.get("prune", key)) is None:
                with store.making("prune", key) as new:
                    ...  # writes files into new.folder

        Waits for other makers. Use a loop, because a process that was suspended too long loses the stage to another one and
        then finds that one's work.

        Args:
            kind: folder name below the root.
            stage: the entry of root key `stages` that allows making it; None = the one named `kind`.
            cache_key: JSON-able; equal content means an equal stage.
        Raises:
            InvalidSetting: it does not exist and `stages` does not allow making it, or this user may not read it.
        """
        key = digest(cache_key)
        folder = self.root / kind / key
        made = self._made.pop(folder, None)
        if made is not None:
            return made
        stage = stage or kind
        artifact = self.find(kind, cache_key, stage=stage)
        if artifact is not None:
            return artifact
        if stage not in self.runnable:
            raise InvalidSetting(
                "stages", list(self.runnable), self._why_absent(folder, kind, stage) + f": add {stage} to stages"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        what = f"{kind} {key}"
        lease = hold_when_free(maker_of(folder), lambda: log.info("waiting for another run that makes %s", what))
        self._held_to_make[folder] = lease
        # Another process may have finished it meanwhile.
        artifact = self.find(kind, cache_key, stage=stage)
        if artifact is not None:
            self._held_to_make.pop(folder).release()
            return artifact
        if folder in self._damaged:
            log.info("discarded, and made again: %s", folder)
        return None

    def is_made_elsewhere(self, kind: str, cache_key: dict[str, Any]) -> bool:
        """Whether another process is making the stage, so that `get` would wait."""
        free = hold_alone(maker_of(self.root / kind / digest(cache_key)))
        if free is None:
            return True
        free.release()
        return False

    @contextmanager
    def making(self, kind: str, cache_key: dict[str, Any]) -> Iterator[Making]:
        """Context for writing the files of a stage after `get` returned None; the stage is finished on exit.

        On failure nothing is left. If this process lost the stage to another one meanwhile, a warning is logged.
        """
        key = digest(cache_key)
        folder = self.root / kind / key
        with working_under(self._held_to_make.pop(folder)) as lease:
            try:
                with self._partial_folder(folder) as partial:
                    with naming_full_disk(partial):
                        partial.mkdir()
                        start, new = working_time(), Making(partial)
                        yield new
                        seconds = new.earlier_seconds + working_time() - start
                        write_record(partial, seconds, cache_key, used=self._used)
                        sync_tree(partial)
                    lease.require()
                    path, self._used[key] = put(partial, folder)
            except Exception as error:
                lease.beat()
                if not lease.lost:  # any error: the successor removed the folder
                    raise
                log.warning("%s %s: %s", kind, key, error)
        if lease.lost:
            require_all()  # ends here if the whole run was replaced
            return
        _sound.add(_version(path))
        self._made[folder] = Artifact(path, key, reused=False, seconds=seconds, held=self._used[key])

    @contextmanager
    def _partial_folder(self, folder: Path) -> Iterator[Path]:
        """Context with the folder that a maker writes to, which becomes the stage or is removed."""
        key = folder.name
        for left_over in folder.parent.glob(f"{key}{PARTIAL}*"):  # from killed makers: we hold the stage
            shutil.rmtree(left_over, ignore_errors=True)  # a suspended one may still write to it
        partial, unfinished = folder.with_name(f"{key}{PARTIAL}{unique()}"), folder.with_name(f"{key}.unfinished")
        if not self.reuse:
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        shutil.rmtree(unfinished, ignore_errors=True)

    def _usable(self, folder: Path, key: str) -> Artifact | None:
        """The newest stage of that name, verified; None if there is none, or it is damaged.

        Raises:
            Obstacle: another user made it and this user may not read it: it is neither damaged nor ours to replace.
        """
        require_readable(folder, otherwise=ANOTHER_CACHE)
        held = hold_newest(folder)
        if held is None:
            return None
        path, lease = held
        require_readable(path, otherwise=ANOTHER_CACHE)
        damage = damage_of(path)
        if damage is not None:
            if folder not in self._damaged:
                log.warning("damaged, and not used: %s: %s", path, damage)
            self._damaged[folder] = f"{path}: {damage}"
            return None
        with suppress(OSError):  # another user's, or read-only: then only its time of last use is wrong
            os.utime(path)
        self._used[key] = lease
        return Artifact(path, key, reused=True, seconds=read_record(path)["seconds"], held=lease)

    def _why_absent(self, folder: Path, kind: str, stage: str) -> str:
        """`kind` distinguishes what a stage makes: masks may exist, but not the times of a search for them."""
        what = f"stage {stage}" if kind == stage else f"{kind}, which stage {stage} makes,"
        if folder in self._damaged:
            return f"{what} is damaged ({self._damaged[folder]})"
        return f"{what} was never finished for this configuration"
