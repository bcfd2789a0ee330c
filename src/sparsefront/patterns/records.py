"""A pattern with its settings as plain values, and back; its class may be a user's own."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from sparsefront.errors import InvalidSetting
from sparsefront.option_classes import option_classes
from sparsefront.patterns.base import Pattern

CLASS = "_target_"


def to_record(pattern: Pattern) -> dict[str, Any]:
    """Its class, package.module.Class, and its settings: JSON-able."""
    kind = type(pattern)
    settings = dataclasses.asdict(pattern) if dataclasses.is_dataclass(pattern) else {}
    return {CLASS: f"{kind.__module__}.{kind.__qualname__}", **settings}


def from_record(record: Mapping[str, Any]) -> Pattern:
    """The pattern that `to_record` wrote.

    Raises:
        ImportError, AttributeError: no such class.
        InvalidSetting, TypeError: settings that it does not take.
    """
    settings = dict(record)
    module, _, name = str(settings.pop(CLASS)).rpartition(".")
    return getattr(importlib.import_module(module), name)(**settings)


def named_pattern(name: str, **settings: Any) -> Pattern:
    """A pattern by its name, such as tile_wise.

    Raises:
        InvalidSetting: no pattern has this name (key `name`), or a setting is wrong.
        TypeError: a setting that it does not take.
    """
    classes = option_classes("sparsefront.patterns")
    if name not in classes:
        raise InvalidSetting("name", name, f"is no pattern; there are {', '.join(classes)}")
    return classes[name](**settings)


def label(pattern: Pattern) -> str:
    """Short, for people and tables: its name, and what differs from the defaults: `tile_wise:64`, `n_m m=4`."""
    if not dataclasses.is_dataclass(pattern):
        return pattern.name
    defaults = {field.name: field.default for field in dataclasses.fields(pattern)}
    unit = f":{pattern.granularity}" if pattern.uses_granularity else ""  # type: ignore[attr-defined]
    others = [
        f" {key}={value}"
        for key, value in vars(pattern).items()
        if key in defaults and key != "granularity" and value != defaults[key]
    ]
    return f"{pattern.name}{unit}{''.join(others)}"
