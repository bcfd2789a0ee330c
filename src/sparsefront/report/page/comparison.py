"""The page of a comparison: everything in one file, nothing loaded from a network."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sparsefront.pruning.target import MOST_MISSED
from sparsefront.report.axis import SPEEDUP, Axis
from sparsefront.report.comparable import ComparableResults, split_comparable
from sparsefront.report.page.run_columns import run_columns
from sparsefront.report.page.run_details import run_details
from sparsefront.report.page.sections import section_data, section_text, styles
from sparsefront.report.page.template import json_for_page, script_text, write_page
from sparsefront.report.points import by_pattern
from sparsefront.report.result import Result


def write_comparison(
    results: Sequence[Result],
    path: Path,
    *,
    title: str,
    axis: Axis = SPEEDUP,
    verdicts_of: Callable[[ComparableResults], Sequence[str]] = lambda group: (),
    folder_of: Callable[[Result], Path | None] = lambda result: None,
    failed: Sequence[dict[str, str]] = (),
    groups: Sequence[ComparableResults] | None = None,
) -> Path:
    """Write the page, whole or not at all.

    Args:
        verdicts_of: how sure the reporting split is of what was picked, as `winners.verdicts` tells.
        folder_of: the folder of a result's `row.json`, with the command that made it and pictures of its masks.
        failed: runs without a result, as `failed_runs` tells of them.
        groups: the results as `split_comparable` gives them, where that was done before.
    Raises:
        ValueError: there is no result.
    """
    from markupsafe import Markup

    if not results:
        raise ValueError("nothing to write: there is no result")
    groups = split_comparable(results, axis) if groups is None else groups
    places = {id(result): place for place, result in enumerate(results)}
    data = {
        "axis": axis.name,
        "most_missed": MOST_MISSED,
        "styles": styles(results),
        "columns": run_columns(results),
        "sections": [section_data(group, places) for group in groups],
        **run_details(results, folder_of, _most_wanted(groups)),
    }
    return write_page(
        path,
        "comparison.html.jinja",
        title=title,
        failed=failed,
        sections=[section_text(group, verdicts_of(group)) for group in groups],
        data=Markup(json_for_page(data)),
        script=Markup(script_text()),
    )


def _most_wanted(groups: Sequence[ComparableResults]) -> list[Result]:
    """Those on the fronts of all patterns."""
    fronts = [group.own_front(series) for group in groups for series in by_pattern(group.points()).values()]
    return [point.result for front in fronts for point in front]
