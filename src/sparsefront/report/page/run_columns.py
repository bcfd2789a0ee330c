"""The runs of a comparison as columns: every field that is one value, in few characters."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from sparsefront.report.baseline import points_lost
from sparsefront.report.candidates import recovery_of, seeds_of, side_of, val_quality
from sparsefront.report.field_types import alternatives
from sparsefront.report.result import Result, result_fields

DERIVED = {
    "quality": lambda result: _of_side(result, ""),
    "quality_error": lambda result: _of_side(result, "_standard_error"),
    "val_quality": val_quality,
    "val_quality_error": lambda result: (
        None if val_quality(result) is None else _of_side(result, "_standard_error", "val_")
    ),
    "lost": points_lost,
    "recovery": recovery_of,
    "recovery_seed": lambda result: seeds_of(result)[1],
    "distribution": lambda result: result.choice.pattern_parameters.get("distribution"),
}
"""Qualities are of the sparse network, with the sparse kernels running where that was measured: fractions, and percentage points.
What is filtered by is known here also of records that are older than its field.
"""


def run_columns(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One entry per field, {"name", and how its values are held}: "constant": one for all; "values": one per run; with "of" too,
    values are places in that list. `DERIVED` come last, their names begin with "_".
    """
    columns: dict[str, Sequence] = {}
    for group, names in _single_values().items():
        # A run after the other, not a field after the other: their memory is far apart.
        rows = map(attrgetter(*names), map(attrgetter(group), results))
        columns |= zip(names, zip(*rows), strict=True)
    columns |= {f"_{name}": [getter(result) for result in results] for name, getter in DERIVED.items()}
    return [{"name": name, **_packed(list(values))} for name, values in columns.items()]


def _single_values() -> dict[str, list[str]]:
    """Group of a result -> its fields that are one value, at least two in each."""
    groups: dict[str, list[str]] = {}
    for field in result_fields():
        if not {dict, list} & set(alternatives(field.hint)):
            groups.setdefault(field.group, []).append(field.name)
    return groups


def _packed(values: list) -> dict[str, Any]:
    if values.count(values[0]) == len(values) and len(set(map(type, values))) == 1:
        return {"constant": values[0]}
    found = {(type(value), value): value for value in values}
    if not any(isinstance(value, str) for value in found.values()) or 2 * len(found) > len(values):
        return {"values": values}
    places = {key: place for place, key in enumerate(found)}
    return {"values": [places[type(value), value] for value in values], "of": list(found.values())}


def _of_side(result: Result, suffix: str, split: str = "") -> float | None:
    side = side_of(result)
    return None if side is None else result.value_of(f"{split}{side}{suffix}")
