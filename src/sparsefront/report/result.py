"""The result: everything that one run states about itself, the one schema of JSON, CSV and W&B.

Field names are unique over the whole result, so the nested JSON and the flat CSV line hold the same under the same names.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, get_type_hints

from sparsefront.artifacts.bounded_files import parse_json_bounded
from sparsefront.report.field_types import from_cell, to_cell
from sparsefront.report.renamed_fields import with_new_columns, with_new_keys, with_new_names
from sparsefront.report.result_groups import (
    Choice,
    Cost,
    Kernels,
    Quality,
    Size,
    Sparsity,
    Speed,
)
from sparsefront.report.result_identity import Identity
from sparsefront.report.schema_version import SCHEMA_VERSION

__all__ = [
    "Choice",
    "Cost",
    "Identity",
    "Kernels",
    "ResultField",
    "Quality",
    "Result",
    "Size",
    "Sparsity",
    "Speed",
    "missing_columns",
    "result_fields",
]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run. See the groups for their fields and units."""

    identity: Identity
    choice: Choice
    sparsity: Sparsity
    quality: Quality
    speed: Speed = field(default_factory=Speed)
    size: Size = field(default_factory=Size)
    kernels: Kernels = field(default_factory=Kernels)
    cost: Cost = field(default_factory=Cost)

    def to_json(self) -> str:
        """Nested JSON, indented, ending in a line end."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """The result that `to_json` wrote; what a result of an older version lacks reads as not measured.

        Raises:
            ValueError: not JSON or out of its bounds (`parse_json_bounded`), a later schema version, unknown or missing keys
                (all are named), or a wrong type.
        """
        content = parse_json_bounded(text)
        if not isinstance(content, dict) or not isinstance(content.get("identity"), dict):
            raise ValueError("not a result: it has no identity")
        version = _checked_version(content["identity"].get("schema_version"))
        members = {group: names for group, names in content.items() if isinstance(names, dict)}
        if version == SCHEMA_VERSION and {group: members[group].keys() for group in members} == _names_by_group():
            return cls(**{group: kind(**members[group]) for group, kind in _groups().items()})
        members = {group: with_new_names(group, names) for group, names in members.items()}
        expected, needed = _expected(complete=version == SCHEMA_VERSION)
        given = {f"{group}.{name}" for group, names in members.items() for name in names}
        _validate_keys(unknown=(given - expected) | (content.keys() - _groups().keys()), missing=needed - given)
        return cls(**{group: kind(**members.get(group, {})) for group, kind in _groups().items()})

    def flat(self) -> dict[str, Any]:
        """field -> value in the order of the schema; mappings as JSON text, None where nothing was measured."""
        return {item.name: to_cell(getattr(getattr(self, item.group), item.name)) for item in result_fields()}

    @classmethod
    def from_flat(cls, cells: Mapping[str, str]) -> "Result":
        """The result of one CSV line; a column that is absent reads as not measured, since a store's columns may grow.

        Raises:
            ValueError: a later schema version, a filled cell under an unknown column, a field that must be there and is
                not, or a cell of a wrong type.
        """
        _checked_version(int(cells["schema_version"]) if cells.get("schema_version", "").isdigit() else None)
        missing = set(missing_columns(cells))
        cells = with_new_columns(cells)
        filled = {name for name, text in cells.items() if text != ""}
        _validate_keys(unknown=filled - {item.name for item in result_fields()}, missing=missing)
        parsed: dict[str, dict[str, Any]] = {group: {} for group in _groups()}
        for item in result_fields():
            text = cells.get(item.name, "")
            if item.required or text != "":
                parsed[item.group][item.name] = with_new_keys(
                    item.group, item.name, from_cell(item.name, text, item.hint)
                )
        return cls(**{group: kind(**parsed[group]) for group, kind in _groups().items()})

    def with_values(self, values: Mapping[str, Any]) -> "Result":
        """A copy with other values of some fields, by their names. Raises KeyError for a name that no result has."""
        groups = {item.name: item.group for item in result_fields()}
        changed: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            changed.setdefault(groups[name], {})[name] = value
        replaced = {group: dataclasses.replace(getattr(self, group), **named) for group, named in changed.items()}
        return dataclasses.replace(self, **replaced)

    def value_of(self, name: str) -> Any:
        """One value by its field name. Raises KeyError for a name that no result has."""
        return _getters()[name](self)


@dataclass(frozen=True)
class ResultField:
    """One entry of the schema; `required` ones have no default."""

    group: str
    name: str
    hint: object
    required: bool


@lru_cache
def result_fields() -> tuple[ResultField, ...]:
    """The whole schema in its order."""
    return tuple(_fields_of_groups())


def missing_columns(header: Iterable[str]) -> list[str]:
    """What a table lacks to be one of results, in the order of the schema; earlier names count as the present ones."""
    there = with_new_columns(dict.fromkeys(header, ""))
    needed = (item.name for item in result_fields() if item.required or item.name == "schema_version")
    return [name for name in needed if name not in there]


def _fields_of_groups() -> Iterator[ResultField]:
    for group, kind in _groups().items():
        hints = get_type_hints(kind)
        for entry in dataclasses.fields(kind):
            required = entry.default is MISSING and entry.default_factory is MISSING
            yield ResultField(group, entry.name, hints[entry.name], required)


@lru_cache
def _getters() -> dict[str, attrgetter]:
    """Field -> what takes it out of a result."""
    return {item.name: attrgetter(f"{item.group}.{item.name}") for item in result_fields()}


@lru_cache
def _names_by_group() -> dict[str, set[str]]:
    return {group: {item.name for item in result_fields() if item.group == group} for group in _groups()}


@lru_cache
def _expected(*, complete: bool) -> tuple[set[str], set[str]]:
    """`group.field` of all that a result may hold, and of all that it must; in a complete one these are the same."""
    names = {f"{item.group}.{item.name}": item.required for item in result_fields()}
    return set(names), {name for name, required in names.items() if required or complete}


@lru_cache
def _groups() -> dict[str, type]:
    return get_type_hints(Result)


def _checked_version(version: object) -> int:
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ValueError(
            f"a result of schema version {version}, while this program reads versions up to {SCHEMA_VERSION}"
        )
    return version


def _validate_keys(*, unknown: set[str], missing: set[str]) -> None:
    complaints = [
        f"{word} {', '.join(sorted(names))}" for word, names in (("unknown", unknown), ("missing", missing)) if names
    ]
    if complaints:
        raise ValueError(f"not a result of this schema: {'; '.join(complaints)}")
