"""One HTML page: for each set of comparable results plots whose points tell their run, and tables."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefront.artifacts.durable import whole_file
from sparsefront.pruning.collapse import collapse_warning, collapsed_layers
from sparsefront.report.axis import SPEEDUP, Axis
from sparsefront.report.column_kinds import fraction, plain
from sparsefront.report.columns import shared_metric, shown_columns
from sparsefront.report.comparable import pattern_order, split_comparable
from sparsefront.report.figures import figures
from sparsefront.report.latency_curve import crossover_text, curve_figure, curve_lines
from sparsefront.report.pattern_summary import pattern_summary
from sparsefront.report.result import Result
from sparsefront.report.series_style import series_styles
from sparsefront.report.winners import CHOICES, OutcomesOf, candidate_table, verdicts

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def write_html(
    results: Sequence[Result],
    path: Path,
    *,
    title: str,
    pictures: Sequence[Path] = (),
    axis: Axis = SPEEDUP,
    script: Path | None = None,
    outcomes_of: OutcomesOf = lambda result: None,
) -> Path:
    """Write the page, whole or not at all. It loads nothing from a network.

    Args:
        pictures: PNG files that are shown at the end, copied into the page.
        outcomes_of: for the comparison of patterns sample by sample.
        script: plotly's JavaScript, which the page links to relatively; None: it is copied into the page (about 5 MB).
    Raises:
        ValueError: there is no result.
    """
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    if not results:
        raise ValueError("nothing to write: there is no result")
    styles = series_styles(pattern_order(results))
    sections = [
        {
            "title": group.title,
            "plots": [Markup(_fragment(figure)) for figure in figures(group, styles)],
            "summary": pattern_summary(group),
            "notes": group.notes(),
            "choices": (chosen := candidate_table(group.results)),
            "choices_title": CHOICES,
            "verdicts": verdicts(group.results, outcomes_of) if chosen else [],
            **_table(group.results),
        }
        for group in split_comparable(results, axis)
    ]
    environment = Environment(loader=PackageLoader("sparsefront.report", "."), autoescape=True, trim_blocks=True)
    page = environment.get_template("page.html.jinja").render(
        title=title,
        sections=sections,
        layers=_layers(results[0]) if len(results) == 1 else [],
        collapsed=_collapse(results[0]) if len(results) == 1 else None,
        curve=_curve(results[0]) if len(results) == 1 and results[0].speed.curve else None,
        pictures=[{"name": file.stem, "base64": base64.b64encode(file.read_bytes()).decode()} for file in pictures],
        plotly=Markup(get_plotlyjs()) if script is None else None,
        script=None if script is None else Path(os.path.relpath(script, path.parent)).as_posix(),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        new.write_text(page, encoding="utf-8")
    return path


def _fragment(figure: "Figure") -> str:
    # plotly offers by itself a button that uploads the figure: results stay here.
    config = {"displaylogo": False, "responsive": True, "showSendToCloud": False}
    return figure.to_html(full_html=False, include_plotlyjs=False, config=config)


def _table(results: Sequence[Result]) -> dict[str, Any]:
    """What all results share, the columns of the rest with their headings, and (column, value, text) per cell."""
    columns, shared = shown_columns(results)
    lines = [[(column, column.value(result), column.cell(result)) for column in columns] for result in results]
    headings = [(column, column.heading(shared_metric(results))) for column in columns]
    return {"shared": shared, "headings": headings, "lines": lines}


def _curve(result: Result) -> dict[str, Any]:
    """The other sizes that a single run was timed at: a plot, a table, and where sparse begins to win."""
    from markupsafe import Markup

    return {
        "plot": Markup(_fragment(curve_figure(result))),
        "lines": curve_lines(result),
        "wins": crossover_text(result),
    }


def _collapse(result: Result) -> str | None:
    """Which layers collapsed, and what helps."""
    sparsity = result.sparsity
    return collapse_warning(sparsity.sparsity_per_layer, sparsity.sparsity_target, plain(result.choice.allocation))


def _layers(result: Result) -> list[dict[str, str]]:
    """Per layer of a single run: sparsity, kernel, time, and why it stayed dense or other kernels are unsupported.

    The sparsity of a layer that collapsed says so: the page marks it.
    """
    collapsed = collapsed_layers(result.sparsity.sparsity_per_layer, result.sparsity.sparsity_target)
    names = [*result.sparsity.sparsity_per_layer, *result.sparsity.dense_layers, *result.kernels.kernel_per_layer]
    lines = []
    for name in dict.fromkeys(names):
        kernel = result.kernels.kernel_per_layer.get(name, {})
        unsupported = "; ".join(f"{other}: {reason}" for other, reason in (kernel.get("unsupported") or {}).items())
        sparsity = result.sparsity.sparsity_per_layer.get(name)
        latency, roofline = kernel.get("latency_us"), kernel.get("roofline_fraction")
        lines.append(
            {
                "layer": name,
                "sparsity": fraction(sparsity) + (" (collapsed)" if name in collapsed else ""),
                "kernel": plain(kernel.get("chosen")),
                "µs": "–" if latency is None else f"{latency:.1f}",
                "of roofline": fraction(roofline),
                "stayed dense, or unsupported because": result.sparsity.dense_layers.get(
                    name, kernel.get("why_dense", unsupported)
                ),
            }
        )
    return lines
