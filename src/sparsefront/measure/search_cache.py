"""Cache of search results for later calls with the same shapes, in this process and later ones."""

import functools
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels import cuda_library
from sparsefront_kernels.tuning.store import driver_cuda, user_file

from sparsefront.artifacts.bounded_files import Unreadable, read_json_bounded
from sparsefront.artifacts.code_digest import code_digest
from sparsefront.artifacts.content_digest import remembering, versions
from sparsefront.artifacts.durable import whole_file

FOLDER = "searches"  # next to the measured launch parameters
SOURCES_READ = "sources.json"  # digests of sources, which later processes need not parse
DRIVER = Path("/sys/module/nvidia/version")


class SearchCache:
    """Results of one kind of search, a file each, in the cache of the kernels' own measurements.

    A file is valid for the same GPU model, driver, code, kernels and libraries. CPU results stay in this process.

    Args:
        kind: name of the search.
        code: modules whose code determines the result.
    """

    def __init__(self, kind: str, code: tuple[str, ...]) -> None:
        self.kind, self.code = kind, code
        self._here: dict[str, dict[str, Any]] = {}

    def get(self, key: str, device: torch.device) -> dict[str, Any] | None:
        """The stored result; None where there is none, or its file cannot be read."""
        if key not in self._here and device.type == "cuda":
            with suppress(OSError, Unreadable):
                record = read_json_bounded(self._file(key, device))
                if isinstance(record, dict):
                    self._here[key] = record
        return self._here.get(key)

    def keep(self, key: str, found: dict[str, Any], device: torch.device) -> None:
        """Store a result for this process and, if its file can be written and all libraries could be built, for later ones."""
        self._here[key] = found
        if device.type != "cuda" or cuda_library.any_failed():
            return
        try:
            file = self._file(key, device)
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as partial:
                partial.write_text(json.dumps(found), encoding="utf-8")
        except OSError as error:  # later processes search again
            cuda_library.report_unwritable_cache(error)

    def _file(self, key: str, device: torch.device) -> Path:
        gpu = torch.cuda.get_device_name(device)
        folder = user_file(gpu, FOLDER).parent
        with remembering(folder / SOURCES_READ):
            parts = self.kind, key, gpu, _environment_digest(self.code)
        return folder / f"{self.kind}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.json"


@functools.cache
def _environment_digest(code: tuple[str, ...]) -> str:
    """Digest of the code, the kernels' sources and compiler, and the versions of libraries and driver."""
    libraries = versions("torch", "triton", "transformers", "quack-kernels", "nvidia-cutlass-dsl", "torchao")
    built = cuda_library.availability()
    driver = DRIVER.read_text(encoding="ascii") if DRIVER.is_file() else driver_cuda()
    return repr((code_digest(*code, without=(), kernels=True), libraries, torch.version.cuda, driver, built))
