"""Accuracy against speedup or latency as a PNG file, or inside a page: one color per pattern, one marker per recovery."""

import io
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from sparsefront.artifacts.durable import whole_file
from sparsefront.printable import plot_text
from sparsefront.report.axis import SPEEDUP, Axis
from sparsefront.report.comparable import ComparableResults, split_comparable
from sparsefront.report.drawn_points import draw_points, draw_series
from sparsefront.report.points import by_pattern
from sparsefront.report.result import Result
from sparsefront.report.series_style import DENSE_COLOR, FRONT_COLOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (6.4, 4.4)
NOTE_WIDTH = 110  # characters of a line above a panel
MOST_NOTE_LINES = 8  # of one note; the page has it whole
LEAST_SHARE = 0.5  # of the largest value that an axis of times spans
SEARCHED_POINTS = 500
RESULTS_FOR_A_PROCESS = 2000
MOST_PANELS = 12  # lines of panels: beyond them the file would be an unreadable strip


def write_pareto_png(results: Sequence[Result], path: Path, axis: Axis = SPEEDUP) -> Path:
    """Draw the results, as `pareto_figure`, into a file.

    Raises:
        ValueError: there is no result.
    """
    return write_groups_png(split_comparable(results, axis), path)


def write_groups_png(groups: Sequence[ComparableResults], path: Path) -> Path:
    """As `write_pareto_png`, of results that are split; the largest groups where there are too many.

    Raises:
        ValueError: there is no group.
    """
    figure = pareto_figure(sorted(groups, key=lambda group: -len(group.results))[:MOST_PANELS])
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        figure.savefig(new, dpi=150, format="png")
    return path


@contextmanager
def drawn_beside(groups: Sequence[ComparableResults], path: Path) -> Iterator[None]:
    """As `write_groups_png`, while the block runs where there is much to draw, in a process of its own; else before it."""
    if sum(len(group.results) for group in groups) < RESULTS_FOR_A_PROCESS:
        write_groups_png(groups, path)
        yield
        return
    process = get_context("fork").Process(target=_draw_quietly, args=(groups, path))  # forked: nothing is copied
    process.start()
    try:
        yield
    finally:
        process.join()
    if process.exitcode:
        write_groups_png(groups, path)  # it fails here too, and says why


def _draw_quietly(groups: Sequence[ComparableResults], path: Path) -> None:
    try:
        write_groups_png(groups, path)
    except Exception:
        sys.exit(1)


def pareto_figure(groups: Sequence[ComparableResults]) -> "Figure":
    """A line of panels for each set of results that may share a plot; what else they differ in stands above.

    Left, quality against the axis: only results whose sparse latency was measured, with the 95 % interval of a speedup and the
    standard error of the test set, or the deviation over seeds where that is larger. Right, quality against sparsity: all
    results, the untimed ones hollow; left out where it would show a single timed point.

    Raises:
        ValueError: there is no group.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not groups:
        raise ValueError("nothing to draw: there is no result")
    columns = 2 if any(group.wants_sparsity_plot() for group in groups) else 1
    # Figure and canvas are made directly: pyplot would keep state between runs and look for a screen.
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    for group, axes in zip(groups, figure.subplots(len(groups), columns, squeeze=False)):
        _draw_latency(axes[0], group)
        if columns == 2:
            _draw_sparsity(axes[1], group)
    return figure


def svg_text(figure: "Figure") -> str:
    """A figure as an `<svg>` element for a page; its letters stay text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sparsefront"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_latency(axes: "Axes", group: ComparableResults) -> None:
    points, dense, front = group.timed_points(), group.dense_point(), group.front()
    draw_points(axes, points, x=lambda point: point.x, front=set(front), intervals=True)
    for pattern, series in by_pattern(points).items():
        draw_series(axes, group.own_front(series), pattern)
    if dense is not None:
        axes.scatter(*dense, color=DENSE_COLOR, marker="*", s=150, zorder=4, label="dense baseline")
    if (continued := group.continued_point()) is not None:
        star = {"color": "none", "edgecolors": DENSE_COLOR, "marker": "*", "s": 150}
        axes.scatter(*continued, **star, zorder=4, label="dense, trained on")
    if len(front) > 1:
        # Steps, not slopes: nothing was measured between two points.
        line = {"color": FRONT_COLOR, "linestyle": "--", "linewidth": 1.2, "drawstyle": "steps-post"}
        axes.plot(*zip(*front), **line, zorder=2, label=plot_text(group.front_label))
    if not points:
        axes.text(0.5, 0.5, "no sparse latency measured", transform=axes.transAxes, ha="center", color=FRONT_COLOR)
    title = "\n".join(
        [group.title, *(line for note in group.notes() for line in wrap(note, NOTE_WIDTH, max_lines=MOST_NOTE_LINES))]
    )
    _finish(axes, len(points), title=title, x_label=group.axis_label, y_label=group.quality_label)
    if group.wants_log_axis():
        _set_log_scale(axes)
    elif points or dense is not None:
        axes.set_xlim(*_span(axes.dataLim.x0, axes.dataLim.x1))


def _span(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis of times. It spans half of the largest value at least: a difference of a thousandth must look like one."""
    spread = max(high - low, LEAST_SHARE * high)
    middle, margin = (low + high) / 2, 0.06 * spread
    return middle - spread / 2 - margin, middle + spread / 2 + margin


def _draw_sparsity(axes: "Axes", group: ComparableResults) -> None:
    draw_points(axes, group.points(), x=lambda point: point.sparsity)
    if (dense := group.dense_quality()) is not None:
        axes.axhline(dense, color=DENSE_COLOR, linewidth=1, linestyle=":", label="dense")
    if (continued := group.continued_quality()) is not None:
        axes.axhline(continued, color=DENSE_COLOR, linewidth=1, linestyle="--", label="dense, trained on")
    _finish(
        axes,
        len(group.points()),
        title=group.title,
        x_label="achieved sparsity, fraction of zeros",
        y_label=group.quality_label,
    )
    axes.set_xlim(0, 1)


def _set_log_scale(axes: "Axes") -> None:
    """Logarithmic, with plain numbers at 1, 2 and 5 of each decade instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _finish(axes: "Axes", points: int, *, title: str, x_label: str, y_label: str) -> None:
    axes.margins(0.12)
    # Differences below a percentage point are mostly noise: they must not fill the axis.
    low, high = axes.get_ylim()
    if math.isfinite(high - low) and high - low < 1:
        middle = (low + high) / 2
        axes.set_ylim(middle - 0.5, middle + 0.5)
    axes.set_title(plot_text(title), fontsize=9)
    axes.set_xlabel(plot_text(x_label))
    axes.set_ylabel(plot_text(y_label))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        # To find the emptiest corner takes longer than all else where there are thousands of points.
        axes.legend(fontsize=8, loc="best" if points <= SEARCHED_POINTS else "lower left")
