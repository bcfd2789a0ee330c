"""Points of a matplotlib panel: colored by pattern, shaped by recovery, grey where something beats them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sparsefront.printable import plot_text
from sparsefront.report.points import Point
from sparsefront.report.series_style import DOMINATED_COLOR, pattern_color, recovery_marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELED_POINTS = 24  # more labels than this would cover each other


def draw_points(
    axes: "Axes",
    points: Sequence[Point],
    *,
    x: Callable[[Point], float],
    front: set[tuple[float, float]] | None = None,
    intervals: bool = False,
) -> None:
    """Markers, their error bars, and an entry of the legend for each pattern and recovery.

    Args:
        x: a point's place on the horizontal axis.
        front: (x, quality) of the points that nothing beats, the others are filled grey; None: all keep their color, and are
            hollow where nothing was timed.
        intervals: draw those on the horizontal axis too.
    """
    recoveries = {point.result.choice.recovery for point in points}
    drawn: dict[tuple, list[Point]] = {}
    for point in points:
        choice = point.result.choice
        filled = point.x is not None if front is None else (x(point), point.quality) in front
        drawn.setdefault((choice.pattern, choice.recovery, filled), []).append(point)
    named = set()
    for (pattern, recovery, filled), members in drawn.items():
        color = pattern_color(pattern)
        empty = "none" if front is None else DOMINATED_COLOR
        label = plot_text(pattern) + (f", {plot_text(recovery or 'no recovery')}" if len(recoveries) > 1 else "")
        label += ", not timed" if front is None and not filled else ""
        axes.scatter(
            [x(point) for point in members],
            [point.quality for point in members],
            edgecolors=color,
            facecolors=color if filled else empty,
            marker=recovery_marker(recovery)[0],
            s=48,
            zorder=3,
            label="_nolegend_" if label in named else label,
        )
        named.add(label)
        _draw_errors(axes, members, x, color, intervals)
    if front is not None and len(points) <= LABELED_POINTS:
        for point in points:
            text = " ".join(filter(None, (f"{point.sparsity:.2g}", point.result.sparsity.n_of_m)))
            at = (x(point), point.quality)
            axes.annotate(plot_text(text), at, textcoords="offset points", xytext=(6, 4), fontsize=7, color="#555555")


def draw_series(axes: "Axes", series: Sequence[Point], pattern: str) -> None:
    """The line of a pattern, through the points of its own front."""
    if len(series) > 1:
        x, quality = [point.x for point in series], [point.quality for point in series]
        axes.plot(x, quality, color=pattern_color(pattern), linewidth=1, alpha=0.7, zorder=1)


def _draw_errors(
    axes: "Axes", points: Sequence[Point], x: Callable[[Point], float], color: str, intervals: bool
) -> None:
    """How sure both coordinates are, where that is known."""
    from matplotlib.collections import LineCollection

    lines = [
        [(x(point), point.quality - point.error), (x(point), point.quality + point.error)]
        for point in points
        if point.error is not None
    ]
    if intervals:
        lines += [[(end, point.quality) for end in point.x_interval] for point in points if point.x_interval]
    axes.add_collection(LineCollection(lines, colors=color, linewidths=0.8, alpha=0.6, zorder=2))
