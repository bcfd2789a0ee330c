"""Measured launch parameters on disk: one JSON file per GPU model.

A table for the GPUs on which we measured ships with the package; a user's own measurements go to
$SPARSEFRONT_KERNELS_CACHE (default ~/.cache/sparsefront_kernels) and take precedence. Several processes may measure at
once: each merges its own measurements into the current file. An unreadable file is ignored with a warning; `save` moves it
aside first.

    {"gpu": "NVIDIA H200",
     "kernels": {"gathered_sm90": {"version": 1, "made_with": {"torch": "2.11.0", "cuda": "13.0", "date": "2026-01-31"},
                                   "entries": {"<key>": {"block_m": 256, ..., "latency_us": 12.3}}}}}
"""

import ctypes
import datetime
import functools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from sparsefront_kernels.file_lock import held_alone

log = logging.getLogger(__name__)
SHIPPED = Path(__file__).parent / "shipped"
STAND_INS = {(9, 0): "NVIDIA H200"}  # compute capability -> model whose shipped tables serve models without their own
DAMAGED = ".damaged"  # suffix of an unreadable file that was moved aside
Content = TypeVar("Content")


@dataclass(frozen=True)
class TunedKernel:
    """Measurements of one kernel on one GPU model.

    Args:
        gpu: the model's name as reported by torch.
        kernel: name of the kernel.
        version: of the kernel's code; entries of another version are ignored, since their parameters may be slow now.
        entries: key -> measured parameters; the key is the kernel's description of a problem.
        own: the entries that this process measured: all that `save` writes.
        stand_ins: like entries, from another model (`stand_in`), for problems with no similar measurement on this one.
        trials: key -> unmeasured parameters that this process uses before `entries`; never written.
    """

    gpu: str
    kernel: str
    version: int
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials: dict[str, dict[str, Any]] = field(default_factory=dict)
    stand_ins: dict[str, dict[str, Any]] = field(default_factory=dict)

    def record(self, key: str, parameters: dict[str, Any]) -> None:
        """Remember the measured parameters of a problem in this process and end its trial; `save` writes them."""
        self.entries[key] = self.own[key] = parameters
        self.trials.pop(key, None)

    def save(self, path: Path | None = None) -> Path:
        """Merge what this process measured into the GPU's file; its other entries and kernels are unchanged.

        Args:
            path: the file; default: the user's own.
        Raises:
            OSError: the file or its folder cannot be written.
        """
        path = path or user_file(self.gpu)
        path.parent.mkdir(parents=True, exist_ok=True)
        made_with = {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver_cuda()}
        made_with["date"] = str(datetime.date.today())
        with held_alone(path.with_suffix(".lock")):
            content = _read(path)
            if content is None:
                with suppress(FileNotFoundError):
                    os.replace(path, f"{path}{DAMAGED}")
                content = {"gpu": self.gpu, "kernels": {}}
            entries = _measured(content, self.kernel, self.version) | _of_some_time(self.own)
            content["kernels"][self.kernel] = {"version": self.version, "made_with": made_with, "entries": entries}
            partial = path.with_suffix(f".{os.getpid()}")  # tempfile would make it unreadable to others
            try:
                partial.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
                os.replace(partial, path)  # atomic for concurrent readers
            finally:
                partial.unlink(missing_ok=True)
        return path


@functools.cache
def tuned_kernel(gpu: str, kernel: str, version: int) -> TunedKernel:
    """All known measurements of a kernel on a GPU model: the shipped table, overridden by the user's own.

    Without a shipped table, another model's stands in.
    """

    def entries_of(path: Path) -> dict[str, dict[str, Any]]:
        return _measured(_read(path) or {"kernels": {}}, kernel, version)

    shipped, stand_ins = SHIPPED / file_name(gpu), {}
    _report_newer_driver(gpu)
    if not shipped.exists() and (other := stand_in(gpu)) is not None:
        stand_ins = entries_of(SHIPPED / file_name(other))
    return TunedKernel(gpu, kernel, version, entries_of(shipped) | entries_of(user_file(gpu)), stand_ins=stand_ins)


@functools.cache
def driver_cuda() -> str | None:
    """The newest CUDA version that the driver supports, such as "13.2"; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


@functools.cache
def _report_newer_driver(gpu: str) -> None:
    """Log once that the shipped table was measured with an older driver, or else an older CUDA, than this driver's."""
    kernels = (_read(SHIPPED / file_name(gpu)) or {"kernels": {}})["kernels"].values()
    measured = [
        made_with.get("driver") or made_with["cuda"] for kernel in kernels if (made_with := kernel.get("made_with"))
    ]
    newest, driver = max(measured, key=_numbers, default=None), driver_cuda()
    if newest is not None and driver is not None and _numbers(driver) > _numbers(newest):
        what = f"launches for {gpu} were measured with CUDA {newest}, this driver is of {driver}"
        log.warning("%s: they are used, unless you tune", what)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


@functools.cache
def stand_in(gpu: str) -> str | None:
    """The GPU model whose shipped tables serve another model of the same compute capability, or None. Logged once.

    Args:
        gpu: name of a device of this process, as reported by torch; None for any other.
    """
    if not gpu or not torch.cuda.is_available():
        return None
    devices = (device for device in range(torch.cuda.device_count()) if torch.cuda.get_device_name(device) == gpu)
    substitute = next((STAND_INS.get(torch.cuda.get_device_capability(device)) for device in devices), None)
    if substitute is None or substitute == gpu:
        return None
    log.warning(
        "nothing was measured on %s: launches and predictions are those of %s, unless you tune", gpu, substitute
    )
    return substitute


def own_or_stand_in(gpu: str, lookup: Callable[[str], Content | None]) -> Content | None:
    """What a lookup has for a GPU model, or else for its `stand_in`."""
    content = lookup(gpu)
    if content is not None or (other := stand_in(gpu)) is None:
        return content
    return lookup(other)


def file_name(gpu: str) -> str:
    """A GPU model's name as a file name: "NVIDIA H200" → "nvidia_h200.json"."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") + ".json"


def user_file(gpu: str, folder: str = "tuned") -> Path:
    """Path of the user's measurements for a GPU model, in a folder of the cache."""
    cache = os.environ.get("SPARSEFRONT_KERNELS_CACHE") or Path.home() / ".cache" / "sparsefront_kernels"
    return Path(cache) / folder / file_name(gpu)


def first_readable(paths: Iterable[Path], load: Callable[[Path], Content]) -> Content | None:
    """Load the first of these files that exists and can be read; None if there is none.

    Each unreadable file is logged as a warning once per process.
    """
    for path in paths:
        if not path.exists():
            continue
        try:
            return load(path)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            _warn_once(path, f"{type(error).__name__}: {error}")
    return None


@functools.cache
def _warn_once(path: Path, error: str) -> None:
    log.warning("%s cannot be read and is ignored; delete it, or measure again. %s", path, error)


def _read(path: Path) -> dict[str, Any] | None:
    return first_readable([path], _load)


def _load(path: Path) -> dict[str, Any]:
    """Content of a file.

    Raises:
        ValueError: not JSON, or not of the form described above.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not isinstance(content.get("kernels"), dict):
        raise ValueError('no table of launches: it must be {"gpu": ..., "kernels": {...}}')
    for kernel, record in content["kernels"].items():
        entries = record.get("entries") if isinstance(record, dict) and "version" in record else None
        if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
            raise ValueError(f'{kernel} must be {{"version": ..., "entries": {{key: parameters}}}}')
    return content


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("latency_us", 1.0), (int, float))


def _measured(content: dict[str, Any], kernel: str, version: int) -> dict[str, dict[str, Any]]:
    """Entries of one version of a kernel in a file."""
    record = content["kernels"].get(kernel)
    return {} if record is None or record["version"] != version else _of_some_time(record["entries"])


def _of_some_time(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Drop entries with latency 0: older versions wrote launches that were only tried."""
    return {key: entry for key, entry in entries.items() if entry.get("latency_us", 1.0) > 0}
