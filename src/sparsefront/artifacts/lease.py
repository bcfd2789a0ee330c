"""Locks (leases) on a shared file system that end with their process, however it ends and wherever it runs.

    .<name>.leases/<alone|shared>.<host>.<process>.<start>.<token>      an empty file per holder or contender

A process creates its own file and then looks at the others. If a live one conflicts, it removes its own file and fails. Of two
simultaneous attempts at least one sees the other, so two processes never hold an exclusive lease; nothing is renamed or broken,
and files of dead processes block nobody. This requires that a new file is visible in the next directory listing on any host:
true for local file systems, NFS (directories changed by the client itself are re-read), Lustre and GPFS. `flock` works on some
of these for one host only, or not at all.

Files with other names are ignored: NFS clients keep `.nfs...` files for what was removed while open.

Liveness: processes of this host are looked up. A process on another host renews its file every `BEAT_S`; once the file is
`LEASE_S` older than a new one in the same folder (so by the same clock), the lease has lapsed. That exceeds the minute for
which NFS clients cache attributes. A suspended process may wake up, so a lapsed lease is only yielded to a process that does
the same work; cleanup waits for `GONE_S`. If its file is missing, a process that wakes up knows that it was replaced:
`Lease.lost`. Leases that can safely be taken again are: `Lease.renews`.
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

from sparsefront.progress import WAITING, track_time

# File names identify the owning process, and whether it is alive.
#
# A process can only be looked up on the same boot of the same machine and in the same container (PID namespace). For
# others, only their own signs of life count.


@cache
def host() -> str:
    """Unique id of this machine since boot, or of this container: its name, for people, and a digest."""
    name = socket.gethostname()
    boot = _text("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    digest = sha256(f"{name} {boot} {namespace}".encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9]+', '_', name)[:40]}_{digest}"


def process_tag() -> str:
    """`<host>.<process>.<start>` of this process, for file names; unique across machines."""
    return f"{host()}.{os.getpid()}.{_state_and_start(os.getpid())[1]}"


def lives(tag: str) -> bool | None:
    """Whether the process of a tag is alive; None if unknown, for example for an invalid tag."""
    parts = tag.split(".")
    if len(parts) != 3 or parts[0] != host() or not parts[1].isdecimal():
        return None
    _, process, start = parts
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # exists, but belongs to another user
    state, actual_start = _state_and_start(int(process))
    return state not in ("Z", "X") and actual_start in (start, "")


def _state_and_start(process: int) -> tuple[str, str]:
    """State letter (Z = zombie) and start time in ticks since boot, because process ids are reused.

    Both are empty if the system does not provide them.
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
GONE_S = 24 * 3600.0  # without a sign of life after which cleanup considers a process dead
ALONE, SHARED = "alone", "shared"
PREFIXES = (f"{ALONE}.", f"{SHARED}.")  # of lease files


class LeaseLost(RuntimeError):
    """This process gave no sign of life for so long that another one may have taken over its work."""


class Lease:
    """A held lease, until `release` or the end of the process.

    Args:
        file: the lease file.
        took_over: files of dead processes that were removed for it.

    `renews`: if its file was removed and nothing conflicts, take it again instead of being lost. Shared leases do the same: a
    new reader does not change what is read.
    """

    def __init__(self, file: Path, took_over: tuple[str, ...]) -> None:
        self.file, self.took_over = file, took_over
        self.lost, self.renews = False, file.name.startswith(f"{SHARED}.")
        self._process: int | None = os.getpid()
        self._one_at_a_time = threading.Lock()
        _beating(self)

    def beat(self) -> None:
        """Renew the file as a sign of life for other hosts; a no-op after release and in a forked process."""
        if self._process != os.getpid():
            return
        with self._one_at_a_time:
            try:
                os.utime(self.file)
            except FileNotFoundError:
                self.lost = self._process is not None and not (self.renews and self._hold_again())
            except OSError as error:  # the network may be down temporarily
                log.debug("no sign of life in %s: %s", self.file, error)

    def _hold_again(self) -> bool:
        try:
            again = hold_in(self.file.parent, self.file.name.partition(".")[0])
        except OSError as error:
            log.debug("not held again: %s: %s", self.file, error)
            return False
        if again is not None:
            self.file, again._process = again.file, None
        return again is not None

    def require(self) -> None:
        """Raise LeaseLost if another process took over."""
        self.beat()
        if self.lost:
            raise LeaseLost(f"{self.file.parent}: no sign of life for {LEASE_S:g} s, so another process took over")

    def release(self) -> None:
        """Release the lease; a no-op if repeated, or in a forked process."""
        if self._process == os.getpid():
            with self._one_at_a_time:
                self._process = None
                _discard(self.file)

    __del__ = release


def hold_shared(path: Path) -> Lease | None:
    """Take a shared lease on a path; None if a process holds it exclusively."""
    return hold_in(leases_of(path), SHARED)


def hold_alone(path: Path, *, lapses_s: float | None = None) -> Lease | None:
    """Take an exclusive lease on a path; None if a live process holds it. `lapses_s`: as in `hold_in`."""
    return hold_in(leases_of(path), ALONE, lapses_s=lapses_s)


def leases_of(path: Path) -> Path:
    """The folder with the leases on a path, which need not exist."""
    return path.with_name(f".{path.name}.leases")


def hold_in(folder: Path, mode: str, *, create: bool = True, lapses_s: float | None = None) -> Lease | None:
    """Like `hold_shared` and `hold_alone`, for a given folder of leases.

    Args:
        create: create a missing folder; otherwise return None.
        lapses_s: seconds without a sign of life after which a process on another host is dead: `GONE_S` for removing what
            it makes or reads; None = `LEASE_S`, for taking over its work, which it would find done if it woke up.
    Raises:
        OSError: no permission to write.
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
        with suppress(OSError):  # another user's; not blocking either way
            other.unlink(missing_ok=True)
    return Lease(own, tuple(other.name for other in dead))


@contextmanager
def held_alone(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[Lease]:
    """Context with an exclusive lease on a path; waits for its holders.

    Args:
        waiting: called once if it has to wait.
    """
    with working_under(hold_when_free(path, waiting)) as lease:
        yield lease


@contextmanager
def working_under(lease: Lease) -> Iterator[Lease]:
    """Context in which `require_all` checks this lease; releases it on exit."""
    _working.append(lease)
    try:
        yield lease
    finally:
        _working.remove(lease)
        lease.release()


def do_alone(path: Path, do: Callable[[Lease], Found]) -> Found:
    """Call `do` under an exclusive lease on a path. If the lease was lost because this process was suspended, call it again:
    `do` calls `Lease.require` before it changes anything, and again where its changes may have been replaced.
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
    """Like `hold_alone`, but waits for other holders. `waiting`: called once if it has to wait."""
    lease = hold_alone(path)
    if lease is not None:
        return lease
    pause, announced = 0.01, False
    with track_time(WAITING):
        while (lease := hold_alone(path)) is None:
            if pause > 0.1 and not announced:
                waiting()
                announced = True
            # With jitter: simultaneous attempts may all fail.
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(0.5, 1.5 * pause)
    return lease


def require_all() -> None:
    """Raise LeaseLost if this process lost a lease of `held_alone` or `working_under`."""
    for lease in list(_working):
        lease.require()


def remove_dead(folder: Path) -> None:
    """Remove the leases of dead processes in a folder, unless a live or possibly suspended one holds something."""
    lease = hold_in(folder, ALONE, create=False, lapses_s=GONE_S)
    if lease is not None:
        lease.release()


def _make(folder: Path, name: str, *, create: bool) -> Path | None:
    """Create the file; None if the folder is missing and should not be created."""
    file = folder / name
    while True:
        try:
            file.touch(exist_ok=False)
            return file
        except FileNotFoundError:  # the folder does not exist, or its last holder just removed it
            if not create:
                return None
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir()


def _discard(file: Path) -> None:
    file.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or just removed
        file.parent.rmdir()


def _alive(other: Path, own: Path, lapses_s: float) -> bool | None:
    """Whether the process of a lease is alive; None if it was just released."""
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
    """Release at exit, while modules still exist."""
    for lease in _all():
        lease.release()


def _beating(lease: Lease) -> None:
    """Let one thread renew all leases of the process."""
    global _heart
    with _of_held:
        _held.add(lease)
        if _heart is None or not _heart.is_alive():  # first lease, or after a fork
            _heart = threading.Thread(target=_beat, name="leases", daemon=True)
            _heart.start()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        for lease in _all():
            lease.beat()
