"""Plots of results as PNG or SVG: one color per pattern, one marker per recovery."""

import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING
from zlib import crc32

from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import plot_text
from sparsefront.results.candidates import low_precision_of
from sparsefront.results.comparable import SPEEDUP, Axis, ComparableResults, Point, by_pattern, split_comparable
from sparsefront.results.record import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Colors and markers of series. A pattern keeps its color and a recovery its marker in every plot and page; other series
# use other colors.

COLORS = tuple("#0b6fb8 #d1495b #2a9d6f #e08e0b #7b5ea7 #5c5c5c #17a2b8 #a0522d #c04fa0 #8a9a1b".split())
# Colors of other series (kernels, weights, sizes), at least 25 away from all pattern colors in CIELAB.
SERIES_COLORS = tuple("#7890fc #9c0c00 #60d86c #fc7848 #6c0078 #fca8cc #605400 #00d8cc #184818 #e4c054".split())
# Of masks: neutral, and different in lightness for color-blind readers.
KEPT_COLOR, PRUNED_COLOR = "#5a6b7b", "#d3d8dd"
DENSE_COLOR, FRONT_COLOR, DOMINATED_COLOR = "#111111", "#999999", "#c4c4c4"
MARKERS = (
    *(("o", "circle"), ("s", "square"), ("^", "triangle-up"), ("D", "diamond"), ("v", "triangle-down"), ("P", "cross")),
    *(("X", "x"), ("<", "triangle-left"), (">", "triangle-right"), ("p", "pentagon")),
)

_PATTERN_COLORS = dict(
    zip(("tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense", "uniform", "channel"), COLORS),
    **{
        "shuffled_block": COLORS[8],
        "tile_2_4": COLORS[9],
        "block_2_4": "#3d4fd1",
        "mixed": "#e6007e",
        "depth": "#7a5c00",
    },
)
_OWN_PATTERN_COLORS = ("#00707a", "#b06a00", "#6b8e23", "#8b2f5a", "#40557a", "#9a5fd0")
_RECOVERY_MARKERS = dict(
    zip(("finetune", "none", "distill", "lr_rewind", "weight_rewind", "obs_update", "sr_ste"), MARKERS),
    **dict(zip(("square_head", "sparse_swaps", "cast"), MARKERS[7:])),
)
_OWN_RECOVERY_MARKERS = (("h", "hexagon"), ("d", "thin-diamond"))


def pattern_color(pattern: str) -> str:
    """Color of a pattern, by name; user patterns get one of six additional colors."""
    return _PATTERN_COLORS.get(pattern) or _OWN_PATTERN_COLORS[_number(pattern) % len(_OWN_PATTERN_COLORS)]


def recovery_marker(recovery: str | None) -> tuple[str, str]:
    """(matplotlib marker, page symbol) of a recovery, by name; user recoveries get one of two additional ones."""
    name = recovery or "none"
    return _RECOVERY_MARKERS.get(name) or _OWN_RECOVERY_MARKERS[_number(name) % len(_OWN_RECOVERY_MARKERS)]


def _number(name: str) -> int:
    """A hash that is the same in every process."""
    return crc32(name.encode(errors="backslashreplace"))


# Points of a matplotlib panel: color by pattern, shape by recovery, hatched in low precision, grey if dominated.

LOW_PRECISION_EDGE, LOW_PRECISION_HATCH = 1.8, "////"
LABELED_POINTS = 24  # more labels would overlap


def draw_points(
    axes: "Axes",
    points: Sequence[Point],
    *,
    x: Callable[[Point], float],
    front: set[tuple[float, float]] | None = None,
    intervals: bool = False,
) -> None:
    """Draw markers, error bars, and a legend entry for each pattern and recovery.

    Args:
        x: returns a point's position on the horizontal axis.
        front: (x, quality) of the Pareto-optimal points; others are grey. None: all are colored, untimed ones hollow.
        intervals: also draw horizontal error bars.
    """
    recoveries = {point.result.choice.recovery for point in points}
    drawn: dict[tuple, list[Point]] = {}
    for point in points:
        choice = point.result.choice
        filled = point.x is not None if front is None else (x(point), point.quality) in front
        drawn.setdefault((choice.prunings, choice.recovery, low_precision_of(point.result), filled), []).append(point)
    labels = set()
    for (pattern, recovery, precision, filled), members in drawn.items():
        color = pattern_color(pattern)
        empty = "none" if front is None else DOMINATED_COLOR
        label = plot_text(pattern) + (f", {plot_text(recovery or 'no recovery')}" if len(recoveries) > 1 else "")
        label += f", {plot_text(precision)}" if precision else ""
        label += ", not timed" if front is None and not filled else ""
        axes.scatter(
            [x(point) for point in members],
            [point.quality for point in members],
            edgecolors=color,
            facecolors=color if filled else empty,
            marker=recovery_marker(recovery)[0],
            s=48,
            linewidths=LOW_PRECISION_EDGE if precision else None,
            hatch=LOW_PRECISION_HATCH if precision else None,
            zorder=3,
            label="_nolegend_" if label in labels else label,
        )
        labels.add(label)
        _draw_errors(axes, members, x, color, intervals)
    if front is not None and len(points) <= LABELED_POINTS:
        for point in points:
            text = " ".join(filter(None, (f"{point.sparsity:.2g}", point.result.sparsity.n_of_m)))
            at = (x(point), point.quality)
            axes.annotate(plot_text(text), at, textcoords="offset points", xytext=(6, 4), fontsize=7, color="#555555")


def _draw_errors(
    axes: "Axes", points: Sequence[Point], x: Callable[[Point], float], color: str, intervals: bool
) -> None:
    """Draw error bars of both coordinates, where known."""
    from matplotlib.collections import LineCollection

    lines = [
        [(x(point), point.quality - point.error), (x(point), point.quality + point.error)]
        for point in points
        if point.error is not None
    ]
    if intervals:
        lines += [[(end, point.quality) for end in point.x_interval] for point in points if point.x_interval]
    axes.add_collection(LineCollection(lines, colors=color, linewidths=0.8, alpha=0.6, zorder=2))


WIDTH_INCHES, BAR_INCHES, FRAME_INCHES = 7.2, 0.17, 1.3


@dataclass(frozen=True)
class LayerDensity:
    """Kept fraction of a layer's weights, in [0, 1]; `stays_dense`: not pruned, for a reason in the result."""

    layer: str
    density: float
    stays_dense: bool


def layer_densities(result: Result) -> list[LayerDensity]:
    """All prunable layers of a run, in network order."""
    dense, sparsities = result.sparsity.dense_layers, result.sparsity.sparsity_per_layer
    return [LayerDensity(layer, 1 - sparsity, stays_dense=layer in dense) for layer, sparsity in sparsities.items()]


def write_density_png(densities: Sequence[LayerDensity], path: Path, *, target: float | None, title: str) -> Path:
    """Draw one bar per layer, and a line at the target density.

    Args:
        densities: at least one.
        target: density over all prunable weights; None if a latency was requested.
    """
    figure = new_figure(WIDTH_INCHES, FRAME_INCHES + BAR_INCHES * len(densities))
    axes = figure.subplots()
    for stays_dense, color, label in ((False, KEPT_COLOR, "pruned"), (True, FRONT_COLOR, "stayed dense")):
        bars = [(place, bar.density) for place, bar in enumerate(densities) if bar.stays_dense is stays_dense]
        if bars:
            places, lengths = zip(*bars)
            axes.barh(places, lengths, height=0.8, color=color, label=label)
    if target is not None:
        axes.axvline(target, color=DENSE_COLOR, linewidth=1.2, linestyle="--", label=f"target {target:.3g}")
    axes.set_yticks(range(len(densities)), [plot_text(bar.layer) for bar in densities], fontsize=6)
    axes.set_ylim(len(densities) - 0.4, -0.6)  # first layer on top
    axes.set_xlim(0, 1)
    axes.set_xlabel("density, fraction of weights kept")
    axes.set_title(plot_text(title), fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return _write_png(figure, path, dpi=120)


def new_figure(width: float, height: float) -> "Figure":
    """A figure in inches without pyplot, which keeps global state and looks for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _write_png(figure: "Figure", path: Path, *, dpi: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        figure.savefig(new, dpi=dpi, format="png")
    return path


PANEL_INCHES = (6.4, 4.4)
NOTE_WIDTH = 110  # characters per line above a panel
MOST_NOTE_LINES = 8  # per note; the page has the full text
LEAST_SHARE = 0.5  # minimum span of a time axis relative to its largest value
SEARCHED_POINTS = 500
RESULTS_FOR_A_PROCESS = 2000
MOST_PANELS = 12  # rows of panels; more would make an unreadable strip


def write_pareto_png(results: Sequence[Result], path: Path, axis: Axis = SPEEDUP) -> Path:
    """Write `pareto_figure` of the results to a file.

    Raises:
        ValueError: there are no results.
    """
    return write_groups_png(split_comparable(results, axis), path)


def write_groups_png(groups: Sequence[ComparableResults], path: Path) -> Path:
    """Like `write_pareto_png`, for grouped results; only the largest groups if there are too many.

    Raises:
        ValueError: there are no groups.
    """
    figure = pareto_figure(sorted(groups, key=lambda group: -len(group.results))[:MOST_PANELS])
    return _write_png(figure, path, dpi=150)


@contextmanager
def draw_beside(groups: Sequence[ComparableResults], path: Path) -> Iterator[None]:
    """Context that runs `write_groups_png` in a separate process meanwhile if there is much to draw, else before."""
    if sum(len(group.results) for group in groups) < RESULTS_FOR_A_PROCESS:
        write_groups_png(groups, path)
        yield
        return
    process = get_context("fork").Process(target=_draw_quietly, args=(groups, path))  # fork: no pickling
    process.start()
    try:
        yield
    finally:
        process.join()
    if process.exitcode:
        write_groups_png(groups, path)  # raises the error here


def _draw_quietly(groups: Sequence[ComparableResults], path: Path) -> None:
    try:
        write_groups_png(groups, path)
    except Exception:
        sys.exit(1)


def pareto_figure(groups: Sequence[ComparableResults]) -> "Figure":
    """One row of panels per group of results that may share a plot, with their other differences above.

    Left: quality against the axis for results with a measured sparse latency, with the 95 % interval of a speedup and the
    larger of test-set standard error and deviation over seeds. Right: quality against sparsity for all results, untimed ones
    hollow; omitted if it would show a single timed point.

    Raises:
        ValueError: there are no groups.
    """
    if not groups:
        raise ValueError("nothing to draw: there is no result")
    columns = 2 if any(group.wants_sparsity_plot() for group in groups) else 1
    figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * len(groups))
    for group, axes in zip(groups, figure.subplots(len(groups), columns, squeeze=False)):
        _draw_latency(axes[0], group)
        if columns == 2:
            _draw_sparsity(axes[1], group)
    return figure


def svg_text(figure: "Figure") -> str:
    """A figure as an `<svg>` element for a page, with text as text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sparsefront"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


# Dense network -> label, and marker and size of its point; only the first is filled.
DENSE_MARKS = {
    "dense": ("dense baseline", "*", 150),
    "dense_continued": ("dense, trained on", "*", 150),
    "dense_distilled": ("dense, trained on with the teacher", "P", 120),
    "dense_low": (None, "D", 70),
}


def _draw_latency(axes: "Axes", group: ComparableResults) -> None:
    points, front = group.timed_points, group.front()
    draw_points(axes, points, x=lambda point: point.x, front=set(front), intervals=True)
    for pattern, series in by_pattern(points).items():
        own = group.own_front(series)
        if len(own) > 1:
            x, quality = [point.x for point in own], [point.quality for point in own]
            axes.plot(x, quality, color=pattern_color(pattern), linewidth=1, alpha=0.7, zorder=1)
    for side, (label, marker, size) in DENSE_MARKS.items():
        dense = group.dense_point(side)
        if dense is not None:
            color = {"color": DENSE_COLOR} if side == "dense" else {"color": "none", "edgecolors": DENSE_COLOR}
            axes.scatter(*dense, **color, marker=marker, s=size, zorder=4, label=label or group.low_label)
    if len(front) > 1:
        # Steps instead of slopes: nothing was measured between points.
        line = {"color": FRONT_COLOR, "linestyle": "--", "linewidth": 1.2, "drawstyle": "steps-post"}
        axes.plot(*zip(*front), **line, zorder=2, label=plot_text(group.front_label))
    if not points:
        axes.text(0.5, 0.5, "no sparse latency measured", transform=axes.transAxes, ha="center", color=FRONT_COLOR)
    notes = (line for note in group.notes for line in wrap(note, NOTE_WIDTH, max_lines=MOST_NOTE_LINES))
    _finish(axes, len(points), group, title="\n".join([group.title, *notes]), x_label=group.axis_label)
    if group.wants_log_axis():
        _set_log_scale(axes)
    elif points or group.dense_point() is not None:
        axes.set_xlim(*_span(axes.dataLim.x0, axes.dataLim.x1))


def _span(low: float, high: float) -> tuple[float, float]:
    """Limits of a time axis, spanning at least half of the largest value, so that tiny differences look tiny."""
    spread = max(high - low, LEAST_SHARE * high)
    middle, margin = (low + high) / 2, 0.06 * spread
    return middle - spread / 2 - margin, middle + spread / 2 + margin


def _draw_sparsity(axes: "Axes", group: ComparableResults) -> None:
    draw_points(axes, group.points, x=lambda point: point.sparsity)
    for side, style in {"dense": ":", "dense_continued": "--", "dense_distilled": "-."}.items():
        quality = group.median_quality(side)
        if quality is not None:
            label = "dense" if side == "dense" else DENSE_MARKS[side][0]
            axes.axhline(quality, color=DENSE_COLOR, linewidth=1, linestyle=style, label=label)
    _finish(axes, len(group.points), group, title=group.title, x_label="achieved sparsity, fraction of zeros")
    axes.set_xlim(0, 1)


def _set_log_scale(axes: "Axes") -> None:
    """Log scale with plain numbers at 1, 2 and 5 of each decade instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _finish(axes: "Axes", points: int, group: ComparableResults, *, title: str, x_label: str) -> None:
    axes.margins(0.12)
    # Differences below one percentage point are mostly noise and must not fill the axis.
    low, high = axes.get_ylim()
    if math.isfinite(high - low) and high - low < 1:
        middle = (low + high) / 2
        axes.set_ylim(middle - 0.5, middle + 0.5)
    axes.set_title(plot_text(title), fontsize=9)
    axes.set_xlabel(plot_text(x_label))
    axes.set_ylabel(plot_text(group.metric.label))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        # With thousands of points, loc="best" would take longer than everything else.
        axes.legend(fontsize=8, loc="best" if points <= SEARCHED_POINTS else "lower left")
