"""The page of a comparison, a single file that loads nothing from a network."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparsefront.measure.speedup import FEWEST_REPEATS
from sparsefront.progress import counted
from sparsefront.pruning.collapse import MOST_MISSED
from sparsefront.results.candidates import (
    budget_of,
    points_lost,
    precision_of,
    recovery_of,
    seeds_of,
    side_of,
    unlike_the_rest,
    val_quality,
)
from sparsefront.results.columns import tabulate_seeds
from sparsefront.results.comparable import (
    AXES,
    CPU_NOTE,
    SPEEDUP,
    Axis,
    ComparableResults,
    by_pattern,
    split_comparable,
)
from sparsefront.results.field_types import holds_entries
from sparsefront.results.page.run import json_for_page, run_details, script_text, write_page
from sparsefront.results.plots import DENSE_COLOR, pattern_color, recovery_marker
from sparsefront.results.record import Result, result_fields
from sparsefront.results.serving import Serving, serving_lines
from sparsefront.results.statistics import CANNOT_TELL, FASTER, FEW_SEEDS, budget_table, pattern_ranking, settings_apart

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
    "precision": precision_of,
    "distribution": lambda result: result.choice.pattern_parameters.get("distribution"),
}
"""Fields computed for the page. Qualities are sparse if measured, else masked: fractions or perplexities, and percentage
points. The fields for filters are also filled for older records.
"""


def run_columns(results: Sequence[Result], served: Mapping[int, Serving]) -> list[dict[str, Any]]:
    """One entry per field: {"name"} plus "constant" (one value for all runs) or "values" (one per run, or indices into the list
    "of"). `DERIVED` fields come last, with names that begin with "_".
    """
    scalars: dict[str, list[str]] = {}  # at least two in each group
    for field in result_fields():
        if not holds_entries(field.hint):
            scalars.setdefault(field.group, []).append(field.name)
    columns: dict[str, Sequence] = {}
    for group, names in scalars.items():
        # Run by run instead of field by field, for memory locality.
        rows = map(attrgetter(*names), map(attrgetter(group), results))
        columns |= zip(names, zip(*rows), strict=True)
    columns |= {f"_{name}": [getter(result) for result in results] for name, getter in DERIVED.items()}
    serving = (served.get(id(result)) for result in results)
    columns["_requests_per_s"] = [None if one is None else one.requests_per_s for one in serving]
    return [{"name": name, **_pack(list(values))} for name, values in columns.items()]


def _pack(values: list) -> dict[str, Any]:
    if values.count(values[0]) == len(values) and len(set(map(type, values))) == 1:
        return {"constant": values[0]}
    distinct_values = {(type(value), value): value for value in values}
    if not any(isinstance(value, str) for value in distinct_values.values()) or 2 * len(distinct_values) > len(values):
        return {"values": values}
    places = {key: place for place, key in enumerate(distinct_values)}
    return {"values": [places[type(value), value] for value in values], "of": list(distinct_values.values())}


def _of_side(result: Result, suffix: str, split: str = "") -> float | None:
    side = side_of(result)
    return None if side is None else result.value_of(f"{split}{side}{suffix}")


# The page's content for each group of comparable results: sentences and tables as text, and points for its script.

SHOWN = ("pattern", "sparsity", "recovery")  # table columns besides the settings


def section_text(group: ComparableResults, verdicts: Sequence[str], served: Mapping[int, Serving]) -> dict[str, Any]:
    """The text that the template inserts into the page.

    Args:
        verdicts: confidence of what was picked, on the reporting split.
    """
    return {
        "title": group.title,
        "runs": counted(len(group.results), "run"),
        "headline": headline(group),
        "budgets": budget_table(group),
        "served": serving_lines(group.results, served),
        "decided_on": "held-out data"
        if group.picked_by == "val"
        else "the reporting split, since nothing else was recorded",
        "ranking": pattern_ranking(group),
        "cells": tabulate_seeds(group.candidates),
        "verdicts": verdicts,
        "notes": group.notes,
        "shared": group.columns[1],
    }


HEADLINE_POINTS = 1.0
"""Maximum points below dense for the headline."""


def headline(group: ComparableResults) -> str:
    """One sentence about the fastest candidate within `HEADLINE_POINTS` of dense; it names none if intervals of speedups
    overlap, and ranks none with too few seeds.
    """
    unit = "% of dense's perplexity" if group.metric.less_is_better else "point of dense"
    within = f"within {HEADLINE_POINTS:g} {unit}"
    if not group.speedup_points:
        return "Nothing here was timed."
    if group.device == "cpu":
        return f"No network is called faster: {CPU_NOTE}."
    lines = budget_table(group, [HEADLINE_POINTS])
    if not lines:
        return "Nothing here may be picked: no held-out data decides."
    verdict, overlapping = lines[0]["verdict"], lines[0].get("its interval overlaps")
    if verdict.startswith(CANNOT_TELL):
        return f"Cannot tell what is {within}: what decides is too small a part of the data (95 %)."
    if not verdict.startswith(FASTER):
        return f"Nothing {within} counts as faster than dense."
    fastest = f"{lines[0]['fastest']}: {next(cell for name, cell in lines[0].items() if name.startswith('speedup'))}"
    if FEW_SEEDS in verdict:
        return f"{within.capitalize()} the fastest measured is {fastest}; {FEW_SEEDS}."
    if overlapping:
        return f"{within.capitalize()} no single one is surely the fastest: {fastest} overlaps {overlapping}."
    return f"{within.capitalize()} the fastest is {fastest}."


def section_data(group: ComparableResults, places: Mapping[int, int]) -> dict[str, Any]:
    """The data that the page's script draws.

    Args:
        places: `id` of a result -> its index among the page's runs.
    """
    distinctions = settings_apart(group.candidates, SHOWN)
    structures = {candidate.structure: place for place, candidate in enumerate(group.candidates)}
    unlike = unlike_the_rest(group.results)
    points = [
        {
            "runs": [places[id(result)] for result in candidate.results],
            "label": candidate.pattern,
            "settings": " ".join(distinctions[candidate.runs].values()),
            "structure": structures[candidate.structure],
            "budget": budget_of(candidate.results[0]) is not None,
        }
        for candidate in group.candidates
    ]
    runs = {places[id(result)]: result.identity.run_id for result in group.results}
    return {
        "title": group.title,
        "runs": list(runs),
        "quality_label": group.metric.label,
        "metric": {"scale": group.metric.scale, "unit": group.metric.unit, "sign": group.metric.sign},
        "picked_by": None if group.offers_no_choice else group.picked_by,
        "points": points,
        "on_cpu": group.device == "cpu",
        "unlike": {place: unlike[run] for place, run in runs.items() if run in unlike},
        "axes": {axis.name: axis.label + (f" ({CPU_NOTE})" if group.device == "cpu" else "") for axis in AXES.values()},
    }


def write_comparison(
    results: Sequence[Result],
    path: Path,
    *,
    title: str,
    axis: Axis = SPEEDUP,
    verdicts_of: Callable[[ComparableResults], Sequence[str]] = lambda group: (),
    folder_of: Callable[[Result], Path | None] = lambda result: None,
    served: Mapping[int, Serving] = MappingProxyType({}),
    failed: Sequence[dict[str, str]] = (),
    groups: Sequence[ComparableResults] | None = None,
) -> Path:
    """Write the page atomically.

    Args:
        verdicts_of: confidence of what was picked on the reporting split, as from `winners.verdicts`.
        folder_of: returns the folder of a result's `row.json`, with its command and mask pictures.
        served: `id` of a result -> how its networks served requests.
        failed: runs without a result, from `list_failures`.
        groups: from `split_comparable`, if already computed.
    Raises:
        ValueError: there are no results.
    """
    from markupsafe import Markup

    if not results:
        raise ValueError("nothing to write: there is no result")
    groups = split_comparable(results, axis) if groups is None else groups
    places = {id(result): place for place, result in enumerate(results)}
    fronts = [group.own_front(series) for group in groups for series in by_pattern(group.points).values()]
    styles = {  # colors by pattern, symbols by recovery
        "dense": DENSE_COLOR,
        "patterns": {one: pattern_color(one) for one in sorted({result.choice.pattern for result in results})},
        "recoveries": {one: recovery_marker(one)[1] for one in sorted(set(map(recovery_of, results)))},
    }
    data = {
        "axis": axis.name,
        "most_missed": MOST_MISSED,
        "fewest_repeats": FEWEST_REPEATS,
        "styles": styles,
        "columns": run_columns(results, served),
        "sections": [section_data(group, places) for group in groups],
        **run_details(results, folder_of, [point.result for front in fronts for point in front]),
    }
    return write_page(
        path,
        "comparison.html.jinja",
        title=title,
        description=f"{groups[0].title}: {headline(groups[0])}",
        failed=failed,
        own_lengths=any(result.speed.speedup_dataset is not None for result in results),
        sections=[section_text(group, verdicts_of(group), served) for group in groups],
        data=Markup(json_for_page(data)),
        script=Markup(script_text()),
    )
