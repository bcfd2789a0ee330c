"""The code that a stage runs: what it reaches by imports, from its own module and from the classes of the configuration."""

from collections.abc import Iterable, Iterator
from typing import Any

from sparsefront.artifacts.code_digest import BOOKKEEPING
from sparsefront.artifacts.import_closure import import_closure
from sparsefront.artifacts.python_modules import Module, find_module
from sparsefront.artifacts.python_source import Import
from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment


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
