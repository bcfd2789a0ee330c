"""Driver queries, and sharing of a GPU between processes of a host: training runs in shared mode, timing exclusively."""

import ctypes
import logging
import os
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels.file_lock import FileLock

from sparsefront import distributed
from sparsefront.progress import ALONE, WAITING, innermost_kind, track_time

TIMEOUT_S = 10


class GpuQuery:
    """A query of one field of one GPU in the background, so that the GPU can work until the answer arrives.

    The GPU is selected by its PCI address, which CUDA reports. This respects any `CUDA_VISIBLE_DEVICES` (indices, UUIDs, MIG
    instances) and any order of devices, which the tool itself ignores. A MIG instance has the address and the clock of its GPU.

    Args:
        field: from `nvidia-smi --help-query-gpu`, such as clocks.sm.
        device: of type cuda.
        every_s: repeat it until `stop`; None = ask once.
    """

    def __init__(self, field: str, device: torch.device, *, every_s: int | None = None) -> None:
        command = ["nvidia-smi", f"--id={pci_address(device)}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
        command += [] if every_s is None else [f"--loop={every_s}"]
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

    def stop(self) -> list[str]:
        """End a repeated query; returns the values so far."""
        if self._process is None:
            return []
        self._process.terminate()
        return [line.strip() for line in self._process.communicate()[0].splitlines()]

    def answer(self, timeout_s: float = TIMEOUT_S) -> str | None:
        """The field's value; None without the tool, without a value, or after `timeout_s` more seconds."""
        if self._process is None:
            return None
        try:
            text, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        # One line for one GPU; anything else is rejected, since another GPU's value is worse than none.
        return text.strip() if self._process.returncode == 0 and len(text.strip().splitlines()) == 1 else None


class BusyShare:
    """Context that measures the share of time in which a GPU ran at least one kernel, of any process: the mean of the driver's
    `utilization.gpu`, asked once a second by one nvidia-smi in the background.

    Args:
        device: on a CPU nothing is measured.
    Attributes:
        value: in [0, 1], after the context; None on a CPU, if the driver does not report it, or within the first second.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.value = device, None

    def __enter__(self) -> "BusyShare":
        self._query = GpuQuery("utilization.gpu", self._device, every_s=1) if self._device.type == "cuda" else None
        return self

    def __exit__(self, *_: object) -> None:
        percents = [] if self._query is None else [line for line in self._query.stop() if line.isdigit()]
        percents = percents[1:]
        if percents:  # the first one is of the time before
            self.value = sum(map(int, percents)) / len(percents) / 100


class EnergyMeter:
    """Context that measures the joules which the GPUs of all ranks used in it.

    Args:
        device: of this rank; on a CPU nothing is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._joules, self._reason = device, None, "a CPU" if device.type != "cuda" else None

    def __enter__(self) -> "EnergyMeter":
        self._read = self._try(lambda: energy_counter(self._device, alone=True))
        self._start = self._try(self._read)
        return self

    def __exit__(self, *_: object) -> None:
        end = self._try(self._read)
        self._joules = None if self._reason else end - self._start

    def fields(self, *, resumed: bool = False) -> dict[str, Any]:
        """`joules`, or None and why in `no_joules`; a collective.

        Args:
            resumed: part of the work was done before a kill, whose joules nobody knows.
        """
        ranks = distributed.all_gather((self._joules, "resumed after a kill" if resumed else self._reason))
        reason = next((why for _, why in ranks if why is not None), None)
        return {"joules": None if reason else sum(joules for joules, _ in ranks), "no_joules": reason}

    def _try(self, call: Callable[[], Any]) -> Any:
        """The call's value; None where NVML refuses, now or before."""
        if self._reason is not None:
            return None
        try:
            return call()
        except NO_ENERGY as error:
            self._reason = str(error)
            return None


NO_ENERGY = (OSError, AttributeError, RuntimeError)
"""What `energy_counter` and its function raise: no NVML here, an old one, or one that does not answer."""


def energy_counter(device: torch.device, *, alone: bool = False) -> Callable[[], float]:
    """A function that returns the joules that the GPU has used since its driver was loaded.

    Args:
        alone: the function fails while another process has the GPU open, whose joules would count as this one's.
    Raises:
        OSError: no NVML here.
        RuntimeError: NVML refuses, for example in a partition (MIG); with its words.
    """
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlErrorString.restype = ctypes.c_char_p

    def check(status: int) -> None:
        if status:
            raise RuntimeError(f"NVML: {nvml.nvmlErrorString(status).decode()}")

    handle, count, processes = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_uint()
    check(nvml.nvmlInit_v2())
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    check(nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)))

    def read() -> float:
        if alone:
            processes.value = 0  # asks for their number only, which NVML reports as too small a buffer
            status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(processes), None)
            check(0 if status == _TOO_SMALL else status)
            if processes.value > 1:
                raise RuntimeError("another process used the GPU at the same time")
        check(nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count)))
        return count.value / 1e3

    return read


_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE


def pci_address(device: torch.device) -> str:
    """domain:bus:device.function, as nvidia-smi expects it."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def clock_under_load(calls: Sequence[Callable[[], object]], device: torch.device) -> float | None:
    """SM clock in MHz, read while the GPU runs these calls one at a time in turn, as the timer does.

    Call it right after a timing, with the timed calls: an idle GPU clocks down, and nvidia-smi would disturb the timing itself.
    Returns None on a CPU, or where the driver does not report it.
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


# A readers-writer lock between the processes of a host: shared or exclusive.
#
#     <folder>/<name>.turnstile   held exclusively by a process that waits for exclusive access or has it
#     <folder>/<name>.lock        held shared or exclusively
#
# Every process passes the turnstile first, so that later ones cannot starve one that waits for exclusive access. Shared holders
# check the turnstile now and then (`exclusive_wanted`) and release the lock.
#
# Source: the turnstile of Downey, "The Little Book of Semaphores", 2016, section 4.2.5, the no-starve readers-writers
# solution.


class Gate:
    """One process's handle of such a lock: held shared, exclusively, or not at all.

    Args:
        folder: on a local file system; created if missing.
        name: of the lock.
        about_to_wait: makes a context manager around each wait, such as one that logs it.
    Raises:
        OSError: the folder or its files cannot be opened, or do not support locks.
    """

    def __init__(
        self, folder: Path, name: str, about_to_wait: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        self._about_to_wait = about_to_wait
        folder.mkdir(parents=True, exist_ok=True)
        self._turnstile, self._lock = FileLock(folder / f"{name}.turnstile"), FileLock(folder / f"{name}.lock")
        self._turnstile.take(shared=True, wait=False)
        self._turnstile.release()

    def enter_shared(self) -> None:
        """Acquire it shared; waits while a process has or awaits exclusive access."""
        self._wait_for(self._turnstile, shared=True)
        # an exclusive holder releases the lock before the turnstile: this never waits
        self._wait_for(self._lock, shared=True)
        self._turnstile.release()

    def enter_exclusive(self) -> None:
        """Acquire it exclusively; waits for all holders, while new ones wait at the turnstile."""
        self._wait_for(self._turnstile)
        try:
            self._wait_for(self._lock)
        except BaseException:  # interrupted while waiting
            self._turnstile.release()
            raise

    def leave(self) -> None:
        """Release it; without effect if not held."""
        self._lock.release()
        self._turnstile.release()

    def exclusive_wanted(self) -> bool:
        """Whether a process waits for exclusive access; for shared holders. Takes two system calls."""
        if not self._turnstile.take(shared=True, wait=False):
            return True
        self._turnstile.release()
        return False

    def _wait_for(self, lock: FileLock, *, shared: bool = False) -> None:
        if not lock.take(shared=shared, wait=False):
            with self._about_to_wait():
                lock.take(shared=shared)


# Access modes of this process to its GPUs: shared, exclusive, or none. On a CPU nothing is locked.

log = logging.getLogger(__name__)
FOLDER = "SPARSEFRONT_GPU_LOCKS"  # environment variable
TELL_AFTER_S = 3.0


@contextmanager
def share_gpu(device: torch.device) -> Iterator[None]:
    """Use a GPU shared with other processes, none of which times meanwhile; long work should call `yield_gpu` now and then.

    Also a decorator. No effect inside `share_gpu` or `exclusive`.

    Args:
        device: of type cuda; without an index, the current one. A CPU is not locked.
    """
    with _in_mode(device, "shared"):
        yield


@contextmanager
def exclusive(device: torch.device) -> Iterator[None]:
    """Use a GPU exclusively, for timing, among the processes that respect this lock.

    Releases a shared lock first, so that two processes about to time do not deadlock. No effect inside `exclusive`.
    """
    with _in_mode(device, "exclusive"):
        yield


@contextmanager
def release_gpu(device: torch.device) -> Iterator[None]:
    """Release a shared lock meanwhile, for work that does not need the GPU or waits for a process that may need it."""
    access = _access_to(device)
    if access is None or access.mode != "shared":
        yield
        return
    with access.hold_mode(None):
        yield


def yield_gpu(device: torch.device) -> None:
    """Yield the GPU to a process that waits to time, if there is one; call it between batches."""
    access = _access_to(device)
    if access is not None and access.mode == "shared" and access.gate.exclusive_wanted():
        access.switch_to(None)
        access.switch_to("shared")


@contextmanager
def _in_mode(device: torch.device, mode: str) -> Iterator[None]:
    access = _access_to(device)
    if access is None or access.mode in (mode, "exclusive"):
        yield
        return
    with access.hold_mode(mode):
        yield


class _Access:
    """This process's access mode to one GPU: shared, exclusive, or None."""

    def __init__(self, device: torch.device, gate: Gate) -> None:
        self.device, self.gate = device, gate
        self.mode: str | None = None

    @contextmanager
    def hold_mode(self, mode: str | None) -> Iterator[None]:
        before = self.mode
        self.switch_to(mode)
        try:
            if mode == "exclusive":
                with track_time(ALONE, innermost_kind()):
                    yield
            else:
                yield
        finally:
            self.switch_to(before)

    def switch_to(self, mode: str | None) -> None:
        if self.mode is not None:
            finish_work(self.device)  # queued work would overlap with the next holder's
            self.mode = None
            self.gate.leave()
        if mode == "shared":
            self.gate.enter_shared()
        elif mode == "exclusive":
            self.gate.enter_exclusive()
        self.mode = mode


def finish_work(device: torch.device) -> None:
    """Synchronize with a GPU; an error, such as of a broken context, is only logged."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        log.debug("the GPU did not finish: %s", error)


def lock_name(device: torch.device) -> str | None:
    """The GPU's UUID, independent of its index in this process; None where there is nothing to lock."""
    if device.type != "cuda" or not _found():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _uuid(index)


_found = cache(torch.cuda.is_available)


@cache
def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def _access_to(device: torch.device) -> _Access | None:
    """This process's access to a device; None where nothing is locked."""
    name = lock_name(device)
    if name is None:
        return None
    if name not in _accesses:
        _accesses[name] = _make_access(name, device)
    return _accesses[name]


def _make_access(name: str, device: torch.device) -> _Access | None:
    """Open the locks of a GPU; None, with a warning, where that fails."""
    folder = lock_folder()
    try:
        return _Access(device, Gate(folder, name, _log_long_wait))
    except (OSError, ImportError) as error:
        log.warning("no lock for this GPU, so that other processes may disturb its timings: %s: %s", folder, error)
        return None


_accesses: dict[str, _Access | None] = {}  # one for each GPU
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_accesses.clear)


def lock_folder() -> Path:
    """Folder of this host's locks: `SPARSEFRONT_GPU_LOCKS`, else a folder for all users in the temporary directory."""
    override = os.environ.get(FOLDER)
    if override:
        return Path(override)
    folder = Path(tempfile.gettempdir()) / "sparsefront-gpu-locks"
    try:
        folder.mkdir()
        folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISVTX)
    except OSError:  # it exists already, or cannot be made, which opening a lock will report
        pass
    return folder


@contextmanager
def _log_long_wait() -> Iterator[None]:
    """Around a wait: count it as waiting, and log a line if it takes longer than `TELL_AFTER_S`."""
    line = threading.Timer(TELL_AFTER_S, log.info, ["waiting for the GPU, which another process times or works on"])
    line.daemon = True
    line.start()
    try:
        with track_time(WAITING):
            yield
    finally:
        line.cancel()


def end_rng_capture() -> None:
    """Take the generator out of capture mode, in which a failed recording leaves it and which rejects every further draw.

    A clone has the same seed and offset and is not in capture mode.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
