"""Plots of all measurements in a file: rooflines, speedup by M, and predicted latency."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront_kernels.performance_model.fit import Errors
from sparsefront_kernels.performance_model.kernel_latency import family_of
from sparsefront_kernels.problem import LAYOUTS

from experiments.harness.figures import entry, hide, legend_below, new_figure, save_png, small_axes
from experiments.operators.measurements import FEWEST_SIZES, M_CLASSES, MClass, Measurement, fastest, m_class
from sparsefront.results.plots import DENSE_COLOR, FRONT_COLOR, MARKERS, SERIES_COLORS, SeriesStyle, series_styles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Rooflines: achieved useful FLOP/s by arithmetic intensity.

ROOFLINE_INCHES = (5.6, 4.6)
COMPUTE_BOUND = 0.9  # of the highest dense rate; runs of a file differ by less, so a lower bound is memory-bound


def dense_rate(measurements: Sequence[Measurement]) -> float:
    """FLOP/s of the compute bound of the fastest run, the highest of all bounds."""
    return max(one.useful_flops / one.roofline_bound_us for one in measurements) * 1e6


def copy_rate(measurements: Sequence[Measurement]) -> float | None:
    """Bytes/s of the memory bound, the highest of all bounds; None if no product is memory-bound.

    Indices, whose bytes are not in the CSV, make it too low unless a product with few of them is memory-bound.
    """
    peak = dense_rate(measurements)
    bound = [one for one in measurements if one.useful_flops / one.roofline_bound_us * 1e6 < COMPUTE_BOUND * peak]
    return max((one.bytes_moved / one.roofline_bound_us * 1e6 for one in bound), default=None)


def write_roofline_png(measurements: Sequence[Measurement], path: Path) -> Path:
    """One panel per layout, with each weight's fastest kernel; color = weight, marker = range of M.

    Raises:
        ValueError: no measurements, or several dtypes, whose roofs differ.
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
    figure = new_figure(ROOFLINE_INCHES[0] * columns, ROOFLINE_INCHES[1] * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    for layout, axes in zip(layouts, panels, strict=False):
        _draw_roofs(axes, measurements)
        _draw_points(axes, [one for one in best if one.layout == layout], styles, markers)
        axes.set_title(f"{dtype}, {layout.replace('_', '-')} X and Y", fontsize=9)
        axes.set_xlabel("useful FLOP per byte of kept values, X and Y")
        axes.set_ylabel("useful TFLOP/s: 2·M·K·N·density / time")
        axes.tick_params(labelbottom=True)  # there may be no panel below
    hide(panels)
    legend_below(figure, _entries(styles, markers), 4)
    return save_png(figure, path)


def _draw_roofs(axes: "Axes", measurements: Sequence[Measurement]) -> None:
    """Draw slope and roof; the roof alone if no product is memory-bound."""
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
    style = {"textcoords": "offset points", "xytext": (-2, 4), "ha": "right", "fontsize": 7, "color": "#555555"}
    axes.annotate(name, (places[-1], heights[-1]), **style)
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


def _entries(styles: dict[str, SeriesStyle], markers: dict[MClass, str]) -> list["Artist"]:
    plain = {"linestyle": "", "markersize": 6}
    entries = [entry(label, style.color, marker="o", **plain) for label, style in styles.items()]
    entries += [entry(sizes.label, FRONT_COLOR, marker=marker, **plain) for sizes, marker in markers.items()]
    return [*entries, entry("roofline bound: dense rate, copy rate", FRONT_COLOR)]


# Sweeps: speedup over dense by M, for the weights with the most M.

SWEEP_INCHES = (3.4, 2.7)
MOST_PANELS = 4  # per layout
OURS = "gathered"

Line = dict[int, float]
"""M -> speedup of the fastest kernel."""


@dataclass
class Sweep:
    """One (K, N) in one layout.

    Args:
        granularity: of our kernels, the one with the most M.
        ours: requested sparsity -> our fastest kernel.
        peers: requested sparsity -> the fastest kernel of another library, in any layout and granularity.
    """

    k: int
    n: int
    layout: str
    granularity: int
    ours: dict[float, Line]
    peers: dict[float, Line] = field(default_factory=dict)

    @property
    def sizes(self) -> set[int]:
        return {m for line in self.ours.values() for m in line}


def sweeps(measurements: Iterable[Measurement]) -> list[Sweep]:
    """Sweeps with enough M, per layout those with the most; equal tiles only."""
    units: dict[tuple[int, int, str], dict[int, dict[float, Line]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    peers: dict[tuple[int, int], dict[float, Line]] = defaultdict(lambda: defaultdict(dict))
    for one in measurements:
        if one.weight.family == OURS and one.weight.distribution == "equal":
            _keep_faster(units[one.k, one.n, one.layout][one.weight.granularity], one)
        elif one.weight.family not in (OURS, "dense"):
            _keep_faster(peers[one.k, one.n], one)
    found = []
    for (k, n, layout), lines in units.items():
        sweep = max((Sweep(k, n, layout, unit, lines[unit], peers[k, n]) for unit in lines), key=lambda s: len(s.sizes))
        if len(sweep.sizes) >= FEWEST_SIZES:
            found.append(sweep)
    found.sort(key=lambda sweep: (LAYOUTS.index(sweep.layout), -len(sweep.sizes), sweep.k * sweep.n, sweep.k))
    return [one for layout in LAYOUTS for one in [one for one in found if one.layout == layout][:MOST_PANELS]]


def write_sweeps_png(measurements: Iterable[Measurement], path: Path) -> Path:
    """A panel per (K, N) (columns) and layout (rows); color = sparsity, dashed = the fastest peer.

    Raises:
        ValueError: no weight was measured with enough M.
    """
    found = sweeps(measurements)
    if not found:
        raise ValueError(f"nothing to draw: no weight was measured with {FEWEST_SIZES} values of M")
    layouts = [layout for layout in LAYOUTS if any(one.layout == layout for one in found)]
    rows = [[one for one in found if one.layout == layout] for layout in layouts]
    columns = max(len(row) for row in rows)
    levels = sorted({level for one in found for level in one.ours})
    colors = {level: SERIES_COLORS[place % len(SERIES_COLORS)] for place, level in enumerate(levels)}
    figure = new_figure(SWEEP_INCHES[0] * max(2, columns), SWEEP_INCHES[1] * len(rows) + 0.5)
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=True)
    for row, line in zip(rows, grid, strict=True):
        for sweep, axes in zip(row, line, strict=False):
            _draw_sweep(axes, sweep, colors)
        hide(line[len(row) :])
        line[0].set_ylabel("speedup over dense", fontsize=8)
    entries = [entry(f"{100 * level:g} %", color, marker="o", markersize=4) for level, color in colors.items()]
    entries.append(entry("fastest peer, its own pattern and layout", "#555555", linestyle="--"))
    entries.append(entry("dense", DENSE_COLOR, linewidth=0.8))
    legend_below(figure, entries, len(entries))
    return save_png(figure, path)


def _keep_faster(lines: dict[float, Line], one: Measurement) -> None:
    level = round(one.sparsity, 2) if one.asked_sparsity is None else one.asked_sparsity
    line = lines[level]
    line[one.m] = max(line.get(one.m, 0.0), exp(one.log_speedup))


def _draw_sweep(axes: "Axes", sweep: Sweep, colors: dict[float, str]) -> None:
    for level, color in colors.items():
        for lines, style in ((sweep.ours, "-"), (sweep.peers, "--")):
            points: Sequence[tuple[int, float]] = sorted(lines.get(level, {}).items())
            if points:
                marker = {"marker": "o", "markersize": 3} if style == "-" else {}
                axes.plot(*zip(*points), color=color, linestyle=style, linewidth=1.1, alpha=0.9, **marker)
    axes.axhline(1.0, color=DENSE_COLOR, linewidth=0.8)
    name = f"{sweep.k} → {sweep.n}, granularity {sweep.granularity}\n{sweep.layout.replace('_', '-')}"
    small_axes(axes, x="M", title=name, powers_of_two="xy")


# Predicted vs. measured latency of each kernel.

PREDICTION_INCHES = (3.1, 2.9)
MOST_COLUMNS = 4
BAND = 0.2  # shaded: relative error up to this

Panel = tuple[str, str]
"""Family of kernels as the model knows it, dtype."""


def predictions(measurements: Iterable[Measurement]) -> dict[Panel, list[Measurement]]:
    """Measurements with a predicted latency, grouped as the performance model's constants are."""
    panels: dict[Panel, list[Measurement]] = defaultdict(list)
    for one in measurements:
        if one.predicted_us is not None:
            panels[family_of(one.kernel) or one.kernel, one.dtype].append(one)
    return dict(sorted(panels.items()))


def write_predictions_png(measurements: Iterable[Measurement], path: Path) -> Path:
    """A panel per family and dtype, both axes logarithmic; color = range of M.

    Raises:
        ValueError: no measurement has a prediction.
    """
    panels = predictions(measurements)
    if not panels:
        raise ValueError("nothing to draw: no measurement has a prediction")
    columns = min(MOST_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(PREDICTION_INCHES[0] * max(2, columns), PREDICTION_INCHES[1] * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    colors = {one: SERIES_COLORS[place] for place, one in enumerate(M_CLASSES)}
    for (family, dtype), axes in zip(panels, grid.flat, strict=False):
        shown = panels[family, dtype]
        _draw_prediction(axes, shown, colors)
        errors = Errors.of(one.predicted_us / one.latency_us for one in shown)
        name = f"{family}, {dtype}: {errors.rows} products"
        axes.set_title(f"{name}\nerror: median {errors.median:.0%}, p90 {errors.p90:.0%}", fontsize=8)
    hide(grid.flat[len(panels) :])
    for line in grid:
        line[0].set_ylabel("predicted, us", fontsize=8)
    seen = {m_class(one.m) for shown in panels.values() for one in shown}
    plain = {"linestyle": "", "marker": "o", "markersize": 5}
    entries = [entry(one.label, colors[one], **plain) for one in M_CLASSES if one in seen]
    entries.append(entry(f"within {BAND:.0%}", FRONT_COLOR, linewidth=6, alpha=0.4))
    legend_below(figure, entries, 4 if columns > 2 else 2)
    return save_png(figure, path)


def _draw_prediction(axes: "Axes", shown: Sequence[Measurement], colors: dict) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    times = [time for one in shown for time in (one.latency_us, one.predicted_us)]
    ends = [min(times) / 1.3, max(times) * 1.3]
    low, high = ([share * end for end in ends] for share in (1 - BAND, 1 + BAND))
    axes.fill_between(ends, low, high, color=FRONT_COLOR, alpha=0.25, lw=0)
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
    small_axes(axes, x="measured, us")
