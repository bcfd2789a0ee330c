"""Achieved FLOP/s of useful work against arithmetic intensity, under the roofs of the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront_kernels.problem import LAYOUTS

from experiments.operators.measurements import M_CLASSES, MClass, Measurement, fastest, m_class
from experiments.operators.picture import new_figure, save_png
from sparsefront.results.plots import DENSE_COLOR, FRONT_COLOR, MARKERS, SeriesStyle, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (5.6, 4.6)
COMPUTE_BOUND = 0.9  # of the highest dense rate: runs of one file differ by less, so a bound below this is of bytes


def dense_rate(measurements: Sequence[Measurement]) -> float:
    """FLOP/s of the compute bound, of the fastest run: no bound allows more useful work per second."""
    return max(one.useful_flops / one.roofline_bound_us for one in measurements) * 1e6


def copy_rate(measurements: Sequence[Measurement]) -> float | None:
    """Bytes/s of the byte bound: no bound allows more bytes per second; None where bytes bind no product.

    Too low by the share of the indices, whose bytes the CSV does not tell, where no product with few of them is bound.
    """
    peak = dense_rate(measurements)
    bound = [one for one in measurements if one.useful_flops / one.roofline_bound_us * 1e6 < COMPUTE_BOUND * peak]
    return max((one.bytes_moved / one.roofline_bound_us * 1e6 for one in bound), default=None)


def write_roofline_png(measurements: Sequence[Measurement], path: Path) -> Path:
    """One panel per layout; color = weight, marker = range of M, the fastest kernel of each.

    Raises:
        ValueError: there is no measurement, or they are of several dtypes, whose roofs differ.
    """

    if not measurements:
        raise ValueError("nothing to draw: there is no measurement")
    dtype, *others = {one.dtype for one in measurements}
    if others:
        raise ValueError(f"one picture is of one dtype, not of {', '.join(sorted([dtype, *others]))}")
    layouts = [layout for layout in LAYOUTS if any(one.layout == layout for one in measurements)]
    best = fastest(measurements)
    sparse = dict.fromkeys(one.weight.label for one in best if one.weight.family != "dense")
    styles = series_styles(list(sparse)) | {"dense": SeriesStyle(DENSE_COLOR, *MARKERS[0])}
    shown = {m_class(one.m) for one in best}
    markers = {one: MARKERS[place][0] for place, one in enumerate(M_CLASSES) if one in shown}
    columns = min(2, len(layouts))
    rows = -(-len(layouts) // columns)
    figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    for layout, axes in zip(layouts, panels, strict=False):
        _draw_roofs(axes, measurements)
        _draw_points(axes, [one for one in best if one.layout == layout], styles, markers)
        axes.set_title(f"{dtype}, {layout.replace('_', '-')} X and Y", fontsize=9)
        axes.set_xlabel("useful FLOP per byte of kept values, X and Y")
        axes.set_ylabel("useful TFLOP/s: 2·M·K·N·density / time")
        axes.tick_params(labelbottom=True)  # the panel below may be missing
    for axes in panels:
        axes.set_axis_off()
    _add_legend(figure, styles, markers)
    return save_png(figure, path)


def _draw_roofs(axes: "Axes", measurements: Sequence[Measurement]) -> None:
    """Slope and roof; the roof alone where bytes bind no product."""
    compute, copy = dense_rate(measurements) / 1e12, copy_rate(measurements)
    intensities = [one.useful_flops / one.bytes_moved for one in measurements]
    left, right = min(intensities) / 1.3, max(intensities) * 1.3
    if copy is None:
        places, heights, name = [left, right], [compute, compute], f"{compute:.0f} TFLOP/s"
    else:
        ridge = compute * 1e12 / copy
        places = [left, *([ridge] if left < ridge < right else []), right]
        heights = [min(compute, place * copy / 1e12) for place in places]
        name = f"{compute:.0f} TFLOP/s, {copy / 1e12:.2f} TB/s"
    axes.plot(places, heights, color=FRONT_COLOR, linewidth=1.2, zorder=1)
    axes.annotate(
        name,
        (places[-1], heights[-1]),
        textcoords="offset points",
        xytext=(-2, 4),
        ha="right",
        fontsize=7,
        color="#555555",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.25, which="both")


def _draw_points(
    axes: "Axes", shown: Sequence[Measurement], styles: dict[str, SeriesStyle], markers: dict[MClass, str]
) -> None:
    for label, style in styles.items():
        for sizes, marker in markers.items():
            points = [
                (one.useful_flops / one.bytes_moved, one.useful_flops / one.latency_us / 1e6)
                for one in shown
                if one.weight.label == label and m_class(one.m) == sizes
            ]
            if points:
                axes.scatter(*zip(*points), color=style.color, marker=marker, s=14, alpha=0.7, linewidths=0, zorder=3)


def _add_legend(figure, styles: dict[str, SeriesStyle], markers: dict[MClass, str]) -> None:
    from matplotlib.lines import Line2D

    plain = {"linestyle": "", "markersize": 6}
    handles = [Line2D([], [], color=style.color, marker="o", label=label, **plain) for label, style in styles.items()]
    handles += [
        Line2D([], [], color=FRONT_COLOR, marker=marker, label=sizes.label, **plain)
        for sizes, marker in markers.items()
    ]
    handles.append(Line2D([], [], color=FRONT_COLOR, label="roofline bound: dense rate, copy rate"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7)
