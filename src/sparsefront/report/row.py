"""The row: everything that one run states about itself, the one schema of JSON, CSV and W&B.

Leaf names are unique over the whole row, so the nested JSON and the flat CSV line hold the same under the same names.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import lru_cache
from typing import Any, get_type_hints

from sparsefront.report.leaf_types import from_cell, to_cell
from sparsefront.report.row_groups import (
    SCHEMA_VERSION,
    Choice,
    Cost,
    Identity,
    Kernels,
    Quality,
    Size,
    Sparsity,
    Speed,
)

__all__ = ["Choice", "Cost", "Identity", "Kernels", "Leaf", "Quality", "Row", "Size", "Sparsity", "Speed", "leaves"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run. See the groups for their leaves and units."""

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
    def from_json(cls, text: str) -> "Row":
        """The row that `to_json` wrote; what a row of an older version lacks reads as not measured.

        Raises:
            ValueError: not JSON, a later schema version, unknown or missing keys (all are named), or a wrong type.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("identity"), dict):
            raise ValueError("not a row: it has no identity")
        version = _checked_version(content["identity"].get("schema_version"))
        expected = {f"{leaf.group}.{leaf.name}" for leaf in leaves()}
        needed = {f"{leaf.group}.{leaf.name}" for leaf in leaves() if leaf.required or version == SCHEMA_VERSION}
        members = {group: names for group, names in content.items() if isinstance(names, dict)}
        given = {f"{group}.{name}" for group, names in members.items() for name in names}
        _refuse_keys(unknown=(given - expected) | (content.keys() - _groups().keys()), missing=needed - given)
        return cls(**{group: kind(**members.get(group, {})) for group, kind in _groups().items()})

    def flat(self) -> dict[str, Any]:
        """leaf -> value in the order of the schema; mappings as JSON text, None where nothing was measured."""
        return {leaf.name: to_cell(getattr(getattr(self, leaf.group), leaf.name)) for leaf in leaves()}

    @classmethod
    def from_flat(cls, cells: Mapping[str, str]) -> "Row":
        """The row of one CSV line; a column that is absent reads as not measured, since a store's columns may grow.

        Raises:
            ValueError: a later schema version, a filled cell under an unknown column, a leaf that must be there and is
                not, or a cell of a wrong type.
        """
        _checked_version(int(cells["schema_version"]) if cells.get("schema_version", "").isdigit() else None)
        filled = {name for name, text in cells.items() if text != ""}
        _refuse_keys(
            unknown=filled - {leaf.name for leaf in leaves()},
            missing={leaf.name for leaf in leaves() if leaf.required} - cells.keys(),
        )
        parsed: dict[str, dict[str, Any]] = {group: {} for group in _groups()}
        for leaf in leaves():
            text = cells.get(leaf.name, "")
            if leaf.required or text != "":
                parsed[leaf.group][leaf.name] = from_cell(leaf.name, text, leaf.hint)
        return cls(**{group: kind(**parsed[group]) for group, kind in _groups().items()})

    def leaf(self, name: str) -> Any:
        """One value by its leaf name. Raises KeyError for a name that no row has."""
        for leaf in leaves():
            if leaf.name == name:
                return getattr(getattr(self, leaf.group), name)
        raise KeyError(name)


@dataclass(frozen=True)
class Leaf:
    """One entry of the schema; `required` ones have no default."""

    group: str
    name: str
    hint: object
    required: bool


@lru_cache
def leaves() -> tuple[Leaf, ...]:
    """The whole schema in its order."""
    return tuple(_leaves_of_groups())


def _leaves_of_groups() -> Iterator[Leaf]:
    for group, kind in _groups().items():
        hints = get_type_hints(kind)
        for entry in dataclasses.fields(kind):
            required = entry.default is MISSING and entry.default_factory is MISSING
            yield Leaf(group, entry.name, hints[entry.name], required)


@lru_cache
def _groups() -> dict[str, type]:
    return get_type_hints(Row)


def _checked_version(version: object) -> int:
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ValueError(f"a row of schema version {version}, while this program reads versions up to {SCHEMA_VERSION}")
    return version


def _refuse_keys(*, unknown: set[str], missing: set[str]) -> None:
    complaints = [
        f"{word} {', '.join(sorted(names))}" for word, names in (("unknown", unknown), ("missing", missing)) if names
    ]
    if complaints:
        raise ValueError(f"not a row of this schema: {'; '.join(complaints)}")
