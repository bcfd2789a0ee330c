"""Measured launch parameters on disk: one JSON file per GPU model.

A table for the GPUs on which we measured ships with the package; what a user measures goes to
$SPARSEFRONT_KERNELS_CACHE (~/.cache/sparsefront_kernels where that is not set) and counts before it.

    {"gpu": "NVIDIA H200",
     "kernels": {"gathered_cuda": {"version": 1, "made_with": {"torch": "2.11.0", "cuda": "13.0", "date": "2026-01-31"},
                                   "entries": {"<key>": {"block_m": 256, ..., "latency_us": 12.3}}}}}
"""

import datetime
import functools
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sparsefront_kernels import renamed

SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class TunedKernel:
    """What was measured for one kernel on one GPU model.

    Args:
        gpu: the model's name, as torch gives it.
        kernel: name of the kernel.
        version: of the kernel's code: entries of another version are not used, since their parameters may be slow now.
        entries: key -> parameters; the key is the kernel's own description of a problem.
    """

    gpu: str
    kernel: str
    version: int
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def record(self, key: str, parameters: dict[str, Any]) -> None:
        """Remember the parameters of a problem, for this process; `save` writes them."""
        self.entries[key] = parameters

    def save(self, path: Path | None = None) -> Path:
        """Write all entries into the GPU's file, whose other kernels stay as they are.

        Args:
            path: the file; by default the user's own.
        """
        path = path or user_file(self.gpu)
        content = _read(path) or {"gpu": self.gpu, "kernels": {}}
        made_with = {"torch": torch.__version__, "cuda": torch.version.cuda, "date": str(datetime.date.today())}
        content["kernels"][self.kernel] = {"version": self.version, "made_with": made_with, "entries": self.entries}
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(content, file, indent=1, sort_keys=True)
        os.replace(file.name, path)  # a process that reads meanwhile sees the old file or the new one
        return path


@functools.cache
def tuned_kernel(gpu: str, kernel: str, version: int) -> TunedKernel:
    """All that is known of a kernel on a GPU model: the shipped table, with the user's own measurements over it."""
    entries: dict[str, dict[str, Any]] = {}
    for path in (SHIPPED / file_name(gpu), user_file(gpu)):
        found = (_read(path) or {"kernels": {}})["kernels"].get(kernel)
        if found is not None and found["version"] == version:
            entries |= found["entries"]
    return TunedKernel(gpu, kernel, version, entries)


def file_name(gpu: str) -> str:
    """A GPU model's name as a file name: "NVIDIA H200" → "nvidia_h200.json"."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") + ".json"


def user_file(gpu: str, folder: str = "tuned") -> Path:
    """Where a user's own measurements for a GPU model are kept, in a folder of the cache."""
    cache = os.environ.get("SPARSEFRONT_KERNELS_CACHE") or Path.home() / ".cache" / "sparsefront_kernels"
    return Path(cache) / folder / file_name(gpu)


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    return content | {"kernels": renamed.tuned_kernels(content["kernels"])}
