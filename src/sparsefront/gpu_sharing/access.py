"""How this process uses its GPUs: with others, alone, or not at all for a while. On a CPU nothing is locked."""

import logging
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from sparsefront.gpu_sharing.gate import Gate
from sparsefront.time_use import ALONE, WAITING, spent_on

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
