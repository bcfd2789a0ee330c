"""The code that a stage runs: what it reaches by imports, from its own module and from the classes of the configuration."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from sparsefront.artifacts.digest import DIGITS, versions
from sparsefront.artifacts.import_closure import import_closure, source_of
from sparsefront.artifacts.native_sources import native_digest, native_sources
from sparsefront.artifacts.python_modules import LIBRARIES, OWN, Module, counts_by_version, find_module
from sparsefront.artifacts.python_source import Import
from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment

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


def stage_modules(experiment: Experiment, groups: tuple[str, ...], *stages: str) -> tuple[Module, ...]:
    """The modules that parts of an experiment and modules of stages are made of.

    Args:
        groups: of the configuration.
        stages: dotted names.
    Raises:
        InvalidSetting: the class of a part has no source file.
    """
    parts = [root for group in groups for root in _roots(experiment, group)]
    return import_closure((*parts, *((stage, None) for stage in stages)), without=BOOKKEEPING)


def _roots(experiment: Experiment, group: str) -> list[Import]:
    """Where the classes of a part and of what it is made of are defined, and what every `_target_` names: another module may
    hand a class on.
    """
    part = getattr(experiment, group)
    kind = type(part)
    if find_module(kind.__module__) is None:
        named = f"{kind.__module__}.{kind.__qualname__}"
        raise InvalidSetting(f"{group}._target_", named, "must be a class in a file: its code is part of every key")
    named = (target.rpartition(".") for target in _targets(experiment.settings[group]))
    inside = [(type(inner).__module__, None) for inner in getattr(part, "parts", ())]
    return [(kind.__module__, None), *inside, *((module, name) for module, _, name in named)]


def _targets(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        if isinstance(target := settings.get("_target_"), str):
            yield target
        settings = settings.values()
    if isinstance(settings, Iterable) and not isinstance(settings, str):
        for value in settings:
            yield from _targets(value)


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
