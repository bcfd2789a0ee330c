"""The GPU of this process: questions to its driver, and sharing it with other processes of the host.

Trainings and evaluations run side by side, a timing runs alone.
"""

import logging
import os
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytorch_lightning as pl
import torch

from sparsefront.progress import ALONE, WAITING, spent_on

# Questions to the driver about the GPU in use, through its own tool `nvidia-smi`.

TIMEOUT_S = 10


class GpuQuery:
    """One field of one GPU, asked for in the background, so that the GPU can go on working until the answer is here.

    The GPU is named by its PCI address, which CUDA knows of the device in use. So `CUDA_VISIBLE_DEVICES` is respected
    whatever it holds (indices, UUIDs, names of MIG instances) and in whatever order CUDA counts; the tool itself ignores
    that variable. A MIG instance has the address, and the clock, of the GPU that it is a part of.

    Args:
        field: one that `nvidia-smi --help-query-gpu` lists, such as clocks.sm.
        device: of type cuda.
    """

    def __init__(self, field: str, device: torch.device) -> None:
        command = ["nvidia-smi", f"--id={pci_address(device)}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError:
            self._process = None

    @property
    def answered(self) -> bool:
        """Whether `answer` returns at once."""
        return self._process is None or self._process.poll() is not None

    def answer(self, timeout_s: float = TIMEOUT_S) -> str | None:
        """The field's value; None where there is no tool, no value, or nothing after `timeout_s` seconds more."""
        if self._process is None:
            return None
        try:
            text, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        # One line, for one GPU was named. Anything else is no answer: another GPU's value is worse than none.
        return text.strip() if self._process.returncode == 0 and len(text.strip().splitlines()) == 1 else None


def pci_address(device: torch.device) -> str:
    """domain:bus:device.function, as the driver's tool takes it."""
    found = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def clock_under_load(calls: Sequence[Callable[[], object]], device: torch.device) -> float | None:
    """SM clock in MHz of the GPU in use, read while it runs these calls in turn, one at a time as the timer does.

    For use right after a timing, with what was timed: an idle GPU clocks down, and the tool that reads the clock would
    disturb the timing itself. Returns None on a CPU, or where the driver does not tell.
    """
    if device.type != "cuda":
        return None
    query, ends = GpuQuery("clocks.sm", device), time.perf_counter() + TIMEOUT_S
    for call in cycle(calls):
        if query.answered or time.perf_counter() > ends:
            break
        call()
        torch.cuda.synchronize(device)
    clock = query.answer(timeout_s=0.1)
    return float(clock) if clock and clock.isdigit() else None


# A lock that many hold together or one holds alone, between the processes of a host.
#
#     <folder>/<name>.turnstile   who wants it alone holds this one, alone, from then on until it is done; others pass through
#     <folder>/<name>.lock        shared or alone
#
# A newcomer passes the turnstile first, so those that come later cannot keep out who waits to be alone. Those that
# hold the lock look at the turnstile now and then (`wanted_alone`) and give it back. Both are locks of the operating
# system (flock): they end with the process, however it ends. The files stay; they are empty.
#
# Source: the turnstile of Downey, "The Little Book of Semaphores", 2016, section 4.2.5, the no-starve readers-writers
# solution.

ANYBODY = 0o666  # the processes may belong to several users


class Gate:
    """One process's access to such a lock; at any time it holds it shared, alone or not at all.

    Args:
        folder: exists, or is made; on a file system of this host.
        name: of the lock.
        about_to_wait: gives what surrounds a wait, such as a context that tells of it.
    Raises:
        OSError: the folder or its files cannot be opened, or know no locks.
    """

    def __init__(
        self, folder: Path, name: str, about_to_wait: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        self._about_to_wait = about_to_wait
        self._turnstile, self._lock = _open(folder / f"{name}.turnstile"), _open(folder / f"{name}.lock")
        _gates.add(self)
        _take(self._turnstile, alone=False)
        _release(self._turnstile)

    def enter_shared(self) -> None:
        """Wait until nobody is alone, nor waits to be."""
        self._wait_for(self._turnstile, alone=False)
        # whoever is alone holds the turnstile until after it has released the lock: this never waits
        self._wait_for(self._lock, alone=False)
        _release(self._turnstile)

    def enter_alone(self) -> None:
        """Wait until the others have left; newcomers wait from now on."""
        self._wait_for(self._turnstile, alone=True)
        try:
            self._wait_for(self._lock, alone=True)
        except BaseException:  # interrupted while it waited
            _release(self._turnstile)
            raise

    def leave(self) -> None:
        """Let others have it; without effect where this process holds nothing."""
        _release(self._lock)
        _release(self._turnstile)

    def wanted_alone(self) -> bool:
        """Whether a process waits to be alone. For one that holds it shared; costs two system calls."""
        if not _take(self._turnstile, alone=False):
            return True
        _release(self._turnstile)
        return False

    def close(self) -> None:
        for file in (self._turnstile, self._lock):
            with suppress(OSError):
                os.close(file)

    def _wait_for(self, file: int, *, alone: bool) -> None:
        if not _take(file, alone=alone):
            with self._about_to_wait():
                _take(file, alone=alone, wait=True)


def _open(file: Path) -> int:
    """For locks reading is enough; only so another user's file in a folder of all users can be opened."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        made = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, ANYBODY)
        with suppress(OSError):
            os.chmod(file, ANYBODY)  # whatever the user's mask takes away
        return made
    return os.open(file, os.O_RDONLY | os.O_CLOEXEC)


def _take(file: int, *, alone: bool, wait: bool = False) -> bool:
    import fcntl  # not on Windows

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _release(file: int) -> None:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)


_gates: "WeakSet[Gate]" = WeakSet()


def _close_copies() -> None:
    """A forked process, such as a loader's worker, has copies of the open files: with them it would hold on after its parent."""
    for gate in list(_gates):
        gate.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


# How this process uses its GPUs: with others, alone, or not at all for a while. On a CPU nothing is locked.

log = logging.getLogger(__name__)
FOLDER = "SPARSEFRONT_GPU_LOCKS"  # environment variable
TELL_AFTER_S = 3.0


@contextmanager
def sharing(device: torch.device) -> Iterator[None]:
    """Work on a GPU beside other processes, none of which times anything meanwhile; long work calls `give_way` now and then.

    Also as a decorator. Inside itself, or inside `alone`, it changes nothing.

    Args:
        device: of type cuda; without an index, the current one. A CPU is not locked.
    """
    with _in_mode(device, "shared"):
        yield


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """Time on a GPU while no other process that goes by this lock runs anything there.

    What this process holds shared it gives back first, so that two which are about to time never wait for each other. Inside
    itself it changes nothing.
    """
    with _in_mode(device, "alone"):
        yield


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Give back what is held shared, while this process may wait for another one that might need the GPU."""
    access = _access_to(device)
    if access is None or access.mode != "shared":
        yield
        return
    with access.switched_to(None):
        yield


def give_way(device: torch.device) -> None:
    """Let a process that waits to time do so, and go on afterwards; at once where there is none. For between two batches."""
    access = _access_to(device)
    if access is not None and access.mode == "shared" and access.gate.wanted_alone():
        access.switch_to(None)
        access.switch_to("shared")


@contextmanager
def _in_mode(device: torch.device, mode: str) -> Iterator[None]:
    access = _access_to(device)
    if access is None or access.mode in (mode, "alone"):
        yield
        return
    with access.switched_to(mode):
        yield


class _Access:
    """This process's mode on one GPU: shared, alone, or None."""

    def __init__(self, device: torch.device, gate: Gate) -> None:
        self.device, self.gate = device, gate
        self.mode: str | None = None

    @contextmanager
    def switched_to(self, mode: str | None) -> Iterator[None]:
        before = self.mode
        self.switch_to(mode)
        try:
            if mode == "alone":
                with spent_on(ALONE):
                    yield
            else:
                yield
        finally:
            self.switch_to(before)

    def switch_to(self, mode: str | None) -> None:
        if self.mode is not None:
            finish_work(self.device)  # what is in its queue would run beside the next one's work
            self.mode = None
            self.gate.leave()
        if mode == "shared":
            self.gate.enter_shared()
        elif mode == "alone":
            self.gate.enter_alone()
        self.mode = mode


def finish_work(device: torch.device) -> None:
    """Wait until a GPU has done what this process gave it; after an error that broke its context there is nothing to wait for."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        log.debug("the GPU did not finish: %s", error)


def lock_name(device: torch.device) -> str | None:
    """Names the GPU, whatever number it has in this process; None where there is nothing to lock."""
    if device.type != "cuda" or not _found():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _uuid(index)


_found = cache(torch.cuda.is_available)


@cache
def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def _access_to(device: torch.device) -> _Access | None:
    """None where nothing is locked."""
    if (name := lock_name(device)) is None:
        return None
    if name not in _accesses:
        _accesses[name] = _make_access(name, device)
    return _accesses[name]


def _make_access(name: str, device: torch.device) -> _Access | None:
    """None, with a warning, where there can be no locks."""
    folder = lock_folder()
    try:
        return _Access(device, Gate(folder, name, _told))
    except (OSError, ImportError) as error:
        log.warning("no lock for this GPU, so that other processes may disturb its timings: %s: %s", folder, error)
        return None


_accesses: dict[str, _Access | None] = {}  # one for each GPU
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_accesses.clear)


def lock_folder() -> Path:
    """Where this host's locks lie: `SPARSEFRONT_GPU_LOCKS`, else a folder of all users among the temporary ones."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    folder = Path(tempfile.gettempdir()) / "sparsefront-gpu-locks"
    try:
        folder.mkdir()
        folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISVTX)
    except OSError:  # it is there already, or cannot be made, of which opening a lock tells
        pass
    return folder


@contextmanager
def _told() -> Iterator[None]:
    """Waiting, with one line where that takes more than a moment."""
    line = threading.Timer(TELL_AFTER_S, log.info, ["waiting for the GPU, which another process times or works on"])
    line.daemon = True
    line.start()
    try:
        with spent_on(WAITING):
            yield
    finally:
        line.cancel()


class GiveWay(pl.Callback):
    """Lightning callback: before a batch of training or validation, lets a process that waits to time have the GPU.

    Ranks of one training each look at their own GPU. One that pauses keeps the others waiting in their next exchange.

    Args:
        device: that this process trains on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def on_train_batch_start(self, *_: Any) -> None:
        give_way(self.device)

    def on_validation_batch_start(self, *_: Any) -> None:
        give_way(self.device)
