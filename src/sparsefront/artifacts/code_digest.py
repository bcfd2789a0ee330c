"""The digest of code: of Python by its modules, of what it runs besides by its sources, of libraries by their versions."""

import hashlib
import sys
from collections.abc import Iterable

from sparsefront.artifacts.digest import DIGITS, versions
from sparsefront.artifacts.import_closure import source_of
from sparsefront.artifacts.native_sources import native_digest, native_sources
from sparsefront.artifacts.python_modules import LIBRARIES, OWN, Module, counts_by_version

# Modules that name, find and hold what a run is made of, and change no result.
BOOKKEEPING = (
    "sparsefront.artifacts",
    "sparsefront.config",
    "sparsefront.declared",
    "sparsefront.errors",
    "sparsefront.experiment",
    "sparsefront.gpu_sharing",
    "sparsefront.stages.keys",
    "sparsefront.stages.stage_code",
    "sparsefront.time_use",
)


def code_digest(modules: Iterable[Module]) -> str:
    """Digest of the modules' Python and, of packages that are not ours, of the CUDA and C++ sources that belong to them, and
    of the versions of other libraries that they import.

    Which kernels of `sparsefront_kernels` a stage runs, its Python does not tell: their sources have a digest of their own.
    """
    hashed, foreign = hashlib.sha256(), []
    for module in modules:
        hashed.update(f"{module.name}\0{source_of(module.file).digest}\0".encode())
        if module.name.partition(".")[0] not in OWN:
            foreign.append(module)
    hashed.update(native_digest(native_sources(foreign)).encode())
    hashed.update(repr(_library_versions(foreign)).encode())
    return hashed.hexdigest()[:DIGITS]


def _library_versions(modules: Iterable[Module]) -> list[tuple[str, str | None]]:
    """What installed libraries besides our own say of themselves; None of those that say nothing, or are missing."""
    imported = {name.partition(".")[0] for module in modules for name, _ in source_of(module.file).imports}
    known = LIBRARIES | sys.stdlib_module_names | {""}  # "": of a relative import
    libraries = sorted(name for name in imported - known if counts_by_version(name))
    found = versions(*libraries)
    return [(name, found[name] or getattr(sys.modules.get(name), "__version__", None)) for name in libraries]
