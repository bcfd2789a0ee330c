"""A pattern with its settings as plain values, and back; its class may be a user's own."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sparsefront.declared.values import checked_arguments
from sparsefront.errors import InvalidSetting
from sparsefront.option_classes import TARGET as CLASS
from sparsefront.option_classes import classes_named_in, option_classes, trusted_class
from sparsefront.patterns.base import Pattern


def to_record(pattern: Pattern) -> dict[str, Any]:
    """Its class, package.module.Class, and its settings: JSON-able."""
    kind = type(pattern)
    settings = dataclasses.asdict(pattern) if dataclasses.is_dataclass(pattern) else {}
    return {CLASS: f"{kind.__module__}.{kind.__qualname__}", **settings}


def from_record(record: Mapping[str, Any], *, trust: Iterable[str] = ()) -> Pattern:
    """The pattern that `to_record` wrote. A record may come from anyone: its class must be a pattern of sparsefront's, and its
    settings fit the types of that class, before it is called.

    Args:
        trust: packages whose patterns may be imported besides.
    Raises:
        InvalidSetting: a class that is no pattern or is not trusted (key `_target_`), also of a candidate inside; settings that
            it does not take.
    """
    trusted = tuple(trust)
    settings = {key: value for key, value in record.items() if key != CLASS}
    kind = trusted_class(record.get(CLASS), Pattern, trust=trusted)
    for nested in classes_named_in(settings):
        trusted_class(nested, Pattern, trust=trusted)
    made: Pattern = kind(**checked_arguments(kind, settings))
    return made


def modules_of(pattern: Pattern) -> set[str]:
    """The modules that define a pattern and its parts: what records of its own masks may name."""
    return {type(part).__module__ for part in (pattern, *pattern.parts)}


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
