"""Locks on a shared file system that end with the process which took them, however it ends and wherever it ran.

    .<name>.leases/<alone|shared>.<host>.<process>.<start>.<token>      an empty file for each that holds, or tries to

A process makes a file of its own and then looks at the others. Where a living one conflicts with it, it removes its own and
fails. Of two that try at once at least one sees the other, so no two ever hold what one alone may hold; nothing is renamed or
broken for that, and nobody waits on a file that a dead process left. This needs a file system on which a file that was made is
in the next listing of its folder, by any host: true of local ones, of NFS (a folder that one changed oneself is read anew),
Lustre and GPFS. Locks of the operating system (`flock`) hold on some of these for one host alone, or do not exist.

Files of other names hold nothing: an NFS client keeps one (`.nfs...`) of what was removed while it was open.

Who is dead: a process of this host is looked up. One of another host renews its file every `BEAT_S`; where the file is `LEASE_S`
older than one made now, in the same folder and so by the same clock, it has lapsed. That is longer than an NFS client keeps a
file's time, a minute. A process that was only suspended may still go on, so a lapsed lease gives way to one that does the same
work, and to nobody else: who only sweeps up leaves it for `GONE_S`. A missing file therefore tells a process that wakes that it
was followed: `Lease.lost`. What can be held again without harm it holds again: `Lease.renews`.
"""

import atexit
import logging
import os
import random
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from sparsefront.progress import WAITING, spent_on

# Which process a file belongs to, told in the file's name, and whether that process lives.
#
# A process can be looked up only by those that count processes as it does: on the same boot of the same machine, in
# the same container. Of any other one only its own signs of life tell.


@cache
def host() -> str:
    """This machine since it was started, or this container: its name, for people, and a digest that no other one has."""
    name = socket.gethostname()
    boot = _text("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    digest = sha256(f"{name} {boot} {namespace}".encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9]+', '_', name)[:40]}_{digest}"


def process_tag() -> str:
    """`<host>.<process>.<start>` of this process, for names of files: no other process has it, on any machine."""
    return f"{host()}.{os.getpid()}.{_state_and_start(os.getpid())[1]}"


def lives(tag: str) -> bool | None:
    """Whether the process of a tag lives; None where that cannot be known from here, as of a text that is no tag."""
    parts = tag.split(".")
    if len(parts) != 3 or parts[0] != host() or not parts[1].isdecimal():
        return None
    _, process, start = parts
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's: it is there
    state, found = _state_and_start(int(process))
    return state not in ("Z", "X") and found in (start, "")


def _state_and_start(process: int) -> tuple[str, str]:
    """A letter, Z of one that has ended; and the ticks from the boot to its start, as its number may be given again.

    Both are empty where the system does not tell.
    """
    content = _text(f"/proc/{process}/stat").rpartition(")")[2].split()
    return (content[0], content[19]) if content else ("", "")


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""


Found = TypeVar("Found")
log = logging.getLogger(__name__)
BEAT_S, LEASE_S = 15.0, 120.0
GONE_S = 24 * 3600.0  # without a sign of life: taken for dead also by those that only sweep up
ALONE, SHARED = "alone", "shared"
PREFIXES = (f"{ALONE}.", f"{SHARED}.")  # of the files that hold something


class LeaseLost(RuntimeError):
    """This process gave no sign of life for so long that another one may do its work now."""


class Lease:
    """Something held, until `release` or the end of the process.

    Args:
        file: that says so.
        took_over: files of dead processes that were removed for it.

    `renews`: where its file was removed and nobody holds what conflicts with it, it is held again rather than lost. So are shared
    leases: who follows a process that reads something does not change what it reads.
    """

    def __init__(self, file: Path, took_over: tuple[str, ...]) -> None:
        self.file, self.took_over = file, took_over
        self.lost, self.renews = False, file.name.startswith(f"{SHARED}.")
        self._process: int | None = os.getpid()
        self._one_at_a_time = threading.Lock()
        _beating(self)

    def beat(self) -> None:
        """A sign of life for other hosts; not of what was released, nor in a forked process."""
        if self._process != os.getpid():
            return
        with self._one_at_a_time:
            try:
                os.utime(self.file)
            except FileNotFoundError:
                self.lost = self._process is not None and not (self.renews and self._held_again())
            except OSError as error:  # of a network that is away for a moment
                log.debug("no sign of life in %s: %s", self.file, error)

    def _held_again(self) -> bool:
        try:
            again = hold_in(self.file.parent, self.file.name.partition(".")[0])
        except OSError as error:
            log.debug("not held again: %s: %s", self.file, error)
            return False
        if again is not None:
            self.file, again._process = again.file, None
        return again is not None

    def require(self) -> None:
        """Raises LeaseLost where another process was given what this one held."""
        self.beat()
        if self.lost:
            raise LeaseLost(f"{self.file.parent}: no sign of life for {LEASE_S:g} s, so another process took over")

    def release(self) -> None:
        """Let others have it; a second call does nothing, nor one in a forked process."""
        if self._process == os.getpid():
            with self._one_at_a_time:
                self._process = None
                _discard(self.file)

    __del__ = release


def hold_shared(path: Path) -> Lease | None:
    """Hold a path with others; None where a process holds it alone."""
    return hold_in(leases_of(path), SHARED)


def hold_alone(path: Path, *, lapses_s: float | None = None) -> Lease | None:
    """Hold a path with no others; None where a living process holds it. `lapses_s`: as in `hold_in`."""
    return hold_in(leases_of(path), ALONE, lapses_s=lapses_s)


def leases_of(path: Path) -> Path:
    """The folder with the leases on a path, which need not exist itself."""
    return path.with_name(f".{path.name}.leases")


def hold_in(folder: Path, mode: str, *, create: bool = True, lapses_s: float | None = None) -> Lease | None:
    """As above, in a folder of leases by its own name.

    Args:
        create: make the folder where it is missing; otherwise the answer is then None.
        lapses_s: after so long without a sign of life a process of another host is dead: `GONE_S` for who would remove what it
            works on or reads; None = `LEASE_S`, for who does its work, and would find it done if it woke.
    Raises:
        OSError: this process may not write there.
    """
    own = _make(folder, f"{mode}.{process_tag()}.{secrets.token_hex(4)}", create=create)
    if own is None:
        return None
    dead = []
    try:
        for other in (path for path in folder.iterdir() if path != own and path.name.startswith(PREFIXES)):
            conflicts = ALONE in (mode, other.name.partition(".")[0])
            state = _alive(other, own, (LEASE_S if lapses_s is None else lapses_s) if conflicts else GONE_S)
            if state is False:
                dead.append(other)
            elif state and conflicts:
                _discard(own)
                return None
    except BaseException:
        _discard(own)
        raise
    for other in dead:
        with suppress(OSError):  # of another user; it holds nothing either way
            other.unlink(missing_ok=True)
    return Lease(own, tuple(other.name for other in dead))


@contextmanager
def held_alone(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[Lease]:
    """Holds a path with no others; waits for those that hold it.

    Args:
        waiting: called once where it has to.
    """
    with working_under(hold_when_free(path, waiting)) as lease:
        yield lease


@contextmanager
def working_under(lease: Lease) -> Iterator[Lease]:
    """`require_all` asks about this lease in the block, which ends it."""
    _working.append(lease)
    try:
        yield lease
    finally:
        _working.remove(lease)
        lease.release()


def do_alone(path: Path, do: Callable[[Lease], Found]) -> Found:
    """What `do` gives, which holds a path with no others meanwhile. Where another process held it because this one slept, it is
    done anew: `do` calls `Lease.require` before it changes anything, and once more where what it changed may have been replaced.
    """
    while True:
        with held_alone(path) as lease:
            try:
                return do(lease)
            except LeaseLost as error:
                if not lease.lost:
                    raise
                log.info("%s: this is done anew", error)


def hold_when_free(path: Path, waiting: Callable[[], None] = lambda: None) -> Lease:
    """As `hold_alone`, but it waits for those that hold the path. `waiting`: called once where it has to."""
    if (lease := hold_alone(path)) is not None:
        return lease
    pause, told = 0.01, False
    with spent_on(WAITING):
        while (lease := hold_alone(path)) is None:
            if pause > 0.1 and not told:
                waiting()
                told = True
            # Not all at once: of those that try at the same moment none may hold it.
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(0.5, 1.5 * pause)
    return lease


def require_all() -> None:
    """Raises LeaseLost where this process lost what it works on, in `held_alone` or `working_under`."""
    for lease in list(_working):
        lease.require()


def remove_dead(folder: Path) -> None:
    """Of a folder of leases: what dead processes left. Where one that lives, or may have slept, holds something, nothing."""
    if (lease := hold_in(folder, ALONE, create=False, lapses_s=GONE_S)) is not None:
        lease.release()


def _make(folder: Path, name: str, *, create: bool) -> Path | None:
    """The file; None where the folder is missing and is not to be made."""
    file = folder / name
    while True:
        try:
            file.touch(exist_ok=False)
            return file
        except FileNotFoundError:  # the first one; or the last one that held it removed the folder at this moment
            if not create:
                return None
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir()


def _discard(file: Path) -> None:
    file.unlink(missing_ok=True)
    with suppress(OSError):  # others hold it, or have just removed it
        file.parent.rmdir()


def _alive(other: Path, own: Path, lapses_s: float) -> bool | None:
    """Whether the process of a lease lives; None where it was released at this moment."""
    alive = lives(other.name.partition(".")[2].rpartition(".")[0])
    if alive is not None:
        return alive
    try:
        return own.stat().st_mtime - other.stat().st_mtime <= lapses_s
    except FileNotFoundError:
        return None


_working: list[Lease] = []
_held: "WeakSet[Lease]" = WeakSet()
_of_held = threading.Lock()
_heart: threading.Thread | None = None


def _all() -> list[Lease]:
    with _of_held:
        return list(_held)


@atexit.register
def _release_all() -> None:
    """While there are still modules to do it with."""
    for lease in _all():
        lease.release()


def _beating(lease: Lease) -> None:
    """One thread renews all leases of the process."""
    global _heart
    with _of_held:
        _held.add(lease)
        if _heart is None or not _heart.is_alive():  # the first one
            _heart = threading.Thread(target=_beat, name="leases", daemon=True)
            _heart.start()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        for lease in _all():
            lease.beat()
