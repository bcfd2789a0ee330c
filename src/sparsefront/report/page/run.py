"""The page of one run: small, without a script, nothing loaded from a network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefront.pruning.collapse import collapse_warning
from sparsefront.report.axis import SPEEDUP, Axis
from sparsefront.report.column_kinds import plain
from sparsefront.report.columns import COLUMNS, shared_metric
from sparsefront.report.comparable import split_comparable
from sparsefront.report.latency_curve import curve_figure, curve_lines, wins_text
from sparsefront.report.layer_lines import layer_lines
from sparsefront.report.page.run_details import picture
from sparsefront.report.page.template import write_page
from sparsefront.report.plots import pareto_figure, svg_text
from sparsefront.report.provenance import provenance
from sparsefront.report.result import Result
from sparsefront.report.run_command import run_command


def write_run_page(
    result: Result, path: Path, *, title: str, pictures: Sequence[Path] = (), axis: Axis = SPEEDUP
) -> Path:
    """Write the page, whole or not at all.

    Args:
        pictures: PNG files that are shown at the end, copied into the page.
    """
    from markupsafe import Markup

    sparsity = result.sparsity
    return write_page(
        path,
        "run.html.jinja",
        title=title,
        plot=Markup(svg_text(pareto_figure(split_comparable([result], axis)))),
        values=_values(result),
        command=run_command(result, path.parent),
        provenance=provenance(result),
        curve=_curve(result) if result.speed.curve else None,
        layers=layer_lines(result),
        collapsed=collapse_warning(
            sparsity.sparsity_per_layer, sparsity.sparsity_target, plain(result.choice.allocation)
        ),
        pictures=[picture(file) for file in pictures],
    )


def _values(result: Result) -> list[dict[str, str]]:
    """What the columns of a comparison hold, as lines."""
    metric = shared_metric([result])
    cells = {column.heading(metric): column.cell(result) for column in COLUMNS}
    return [{"": heading, "value": text} for heading, text in cells.items() if text != "–"]


def _curve(result: Result) -> dict[str, Any]:
    """The other sizes that it was timed at: a plot, a table, and where sparse wins."""
    from markupsafe import Markup

    plot = Markup(svg_text(curve_figure(result)))
    return {"plot": plot, "lines": curve_lines(result), "wins": wins_text(result)}
