"""What the time model expects against what was measured, kernel by kernel."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront_kernels.performance_model.errors import Errors
from sparsefront_kernels.performance_model.kernel_latency import family_of

from experiments.operators.measurements import M_CLASSES, Measurement, m_class
from experiments.operators.picture import new_figure, save_png
from sparsefront.results.plots import FRONT_COLOR, SERIES_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (3.1, 2.9)
MOST_COLUMNS = 4
BAND = 0.2  # shaded: predictions that are off by this share at most

Panel = tuple[str, str]
"""Family of kernels as the model knows it, dtype."""


def predictions(measurements: Iterable[Measurement]) -> dict[Panel, list[Measurement]]:
    """The measurements that the model predicts, by what its constants are of."""
    panels: dict[Panel, list[Measurement]] = defaultdict(list)
    for one in measurements:
        if one.predicted_us is not None:
            panels[family_of(one.kernel) or one.kernel, one.dtype].append(one)
    return dict(sorted(panels.items()))


def write_predictions_png(measurements: Iterable[Measurement], path: Path) -> Path:
    """A panel per family and dtype, both axes logarithmic; color = range of M.

    Raises:
        ValueError: nothing was predicted.
    """
    from matplotlib.lines import Line2D

    panels = predictions(measurements)
    if not panels:
        raise ValueError("nothing to draw: no measurement has a prediction")
    columns = min(MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(PANEL_INCHES[0] * max(2, columns), PANEL_INCHES[1] * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    colors = {one: SERIES_COLORS[place] for place, one in enumerate(M_CLASSES)}
    for (family, dtype), axes in zip(panels, grid.flat, strict=False):
        shown = panels[family, dtype]
        _draw_panel(axes, shown, colors)
        errors = Errors.of(one.predicted_us / one.latency_us for one in shown)
        name = f"{family}, {dtype}: {errors.rows} products"
        axes.set_title(f"{name}\nerror: median {errors.median:.0%}, p90 {errors.p90:.0%}", fontsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for line in grid:
        line[0].set_ylabel("predicted, us", fontsize=8)
    seen = {m_class(one.m) for shown in panels.values() for one in shown}
    plain = {"linestyle": "", "marker": "o", "markersize": 5}
    handles = [Line2D([], [], color=colors[one], label=one.label, **plain) for one in M_CLASSES if one in seen]
    handles.append(Line2D([], [], color=FRONT_COLOR, linewidth=6, alpha=0.4, label=f"within {BAND:.0%}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if columns > 2 else 2, fontsize=7)
    return save_png(figure, path)


def _draw_panel(axes: "Axes", shown: Sequence[Measurement], colors: dict) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    times = [time for one in shown for time in (one.latency_us, one.predicted_us)]
    ends = [min(times) / 1.3, max(times) * 1.3]
    axes.fill_between(
        ends,
        [(1 - BAND) * end for end in ends],
        [(1 + BAND) * end for end in ends],
        color=FRONT_COLOR,
        alpha=0.25,
        lw=0,
    )
    axes.plot(ends, ends, color=FRONT_COLOR, linewidth=0.8)
    for sizes, color in colors.items():
        points = [(one.latency_us, one.predicted_us) for one in shown if m_class(one.m) == sizes]
        if points:
            axes.scatter(*zip(*points), color=color, s=7, alpha=0.6, linewidths=0, zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if ends[1] < 100 * ends[0] else (1.0,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel("measured, us", fontsize=8)
    axes.tick_params(labelsize=7, which="both")
    axes.grid(alpha=0.25)
