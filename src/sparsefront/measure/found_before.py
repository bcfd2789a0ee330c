"""What searches of the library found, for other calls with the same shapes, of this process and of later ones."""

import functools
import hashlib
import json
import logging
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels import cuda_library
from sparsefront_kernels.tuning.store import user_file

from sparsefront.artifacts.bounded_files import Unreadable, read_json_bounded
from sparsefront.artifacts.code_digest import (
    SOURCES,
    TABLES,
    code_digest,
    find_module,
    import_closure,
    native_digest,
    native_sources,
)
from sparsefront.artifacts.content_digest import versions
from sparsefront.artifacts.durable import whole_file
from sparsefront.measure.search_time import SearchTime

log = logging.getLogger(__name__)
FOLDER = "searches"  # beside the launch parameters that were measured


class FoundBefore:
    """What one kind of search found: a file for each, in the cache of the kernels' own measurements.

    A file counts on the same GPU model, with the same code, kernels and libraries. Only what lies on a GPU is kept.

    Args:
        kind: names it.
        code: modules whose code decides what is found.
    """

    def __init__(self, kind: str, code: tuple[str, ...]) -> None:
        self.kind, self.code = kind, code
        self._here: dict[str, dict[str, Any]] = {}

    def get(self, key: str, device: torch.device) -> dict[str, Any] | None:
        """None where nothing was found, or its file cannot be read."""
        if key not in self._here and device.type == "cuda":
            with suppress(OSError, Unreadable):
                found = read_json_bounded(self._file(key, device))
                if isinstance(found, dict):
                    self._here[key] = found
        return self._here.get(key)

    def keep(self, key: str, found: dict[str, Any], device: torch.device) -> None:
        """For this process, and for later ones where the file can be written."""
        self._here[key] = found
        if device.type != "cuda":
            return
        try:
            file = self._file(key, device)
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as partial:
                partial.write_text(json.dumps(found), encoding="utf-8")
        except OSError as error:  # it is found again where it is needed
            log.warning("what a search found is not kept: %s", error)

    def _file(self, key: str, device: torch.device) -> Path:
        gpu = torch.cuda.get_device_name(device)
        name = hashlib.sha256("\0".join((self.kind, key, gpu, _made_with(self.code))).encode()).hexdigest()[:32]
        return user_file(gpu, FOLDER).with_name(f"{self.kind}-{name}.json")


def good_for(search: SearchTime) -> dict[str, float | None]:
    """For what is kept: seconds of the longest search that would find nothing else, None without a limit."""
    return {"seconds": None if math.isinf(search.good_for) else search.good_for}


def seconds_of(found: dict[str, Any]) -> float:
    """Likewise, of what was kept."""
    return math.inf if found["seconds"] is None else found["seconds"]


@functools.cache
def _made_with(code: tuple[str, ...]) -> str:
    """The code, the kernels' sources and what builds them, and the libraries."""
    modules = import_closure(tuple((module, None) for module in code if find_module(module) is not None))
    kernels = [module for module in modules if module.name.startswith("sparsefront_kernels.")]
    sources = native_digest(native_sources(kernels, (*SOURCES, *TABLES)))
    libraries = versions("torch", "triton", "transformers", "quack-kernels", "nvidia-cutlass-dsl", "torchao")
    return repr((code_digest(modules), sources, libraries, torch.version.cuda, cuda_library.compiler()))
