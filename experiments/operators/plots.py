"""Figures of the operator benchmark: speedup by M, and predicted latency."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront_kernels.performance_model.fit import Errors
from sparsefront_kernels.performance_model.kernel_latency import family_of
from sparsefront_kernels.problem import LAYOUTS

from experiments.harness.figures import new_figure, paper_style, save_svg, small_axes
from experiments.operators.measurements import FEWEST_SIZES, M_CLASSES, Measurement, m_class
from sparsefront.results.plots import DENSE_COLOR, FRONT_COLOR, SERIES_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    complete = []
    for (k, n, layout), lines in units.items():
        sweep = max((Sweep(k, n, layout, unit, lines[unit], peers[k, n]) for unit in lines), key=lambda s: len(s.sizes))
        if len(sweep.sizes) >= FEWEST_SIZES:
            complete.append(sweep)
    complete.sort(key=lambda sweep: (LAYOUTS.index(sweep.layout), -len(sweep.sizes), sweep.k * sweep.n, sweep.k))
    return [one for layout in LAYOUTS for one in [one for one in complete if one.layout == layout][:MOST_PANELS]]


@paper_style
def draw_sweeps(measurements: Iterable[Measurement], path: Path) -> Path | None:
    """A panel per (K, N) and layout; color = sparsity, dashed = the fastest peer. None if no weight has enough M."""
    drawn = sweeps(measurements)
    if not drawn:
        return None
    levels = sorted({level for one in drawn for level in one.ours})
    colors = {level: SERIES_COLORS[place % len(SERIES_COLORS)] for place, level in enumerate(levels)}
    figure = new_figure(len(drawn), height=2.2)
    for sweep, axes in zip(drawn, figure.axes):
        _draw_sweep(axes, sweep, colors)
    for level, color in colors.items():
        figure.axes[0].plot([], [], color=color, marker="o", label=f"{100 * level:g} %")
    figure.axes[0].plot([], [], color="#555555", linestyle="--", label="fastest peer")
    figure.axes[0].legend()
    return save_svg(figure, path)


def _keep_faster(lines: dict[float, Line], one: Measurement) -> None:
    level = round(one.sparsity, 2) if one.asked_sparsity is None else one.asked_sparsity
    line = lines[level]
    line[one.m] = max(line.get(one.m, 0.0), exp(one.log_speedup))


def _draw_sweep(axes: "Axes", sweep: Sweep, colors: dict[float, str]) -> None:
    for level, color in colors.items():
        for lines, style in ((sweep.ours, "-"), (sweep.peers, "--")):
            points: Sequence[tuple[int, float]] = sorted(lines.get(level, {}).items())
            if points:
                axes.plot(*zip(*points), color=color, linestyle=style, marker="o" if style == "-" else "")
    axes.axhline(1.0, color=DENSE_COLOR, linewidth=0.8)
    name = f"{sweep.k} → {sweep.n}, tiles of {sweep.granularity}, {sweep.layout.replace('_', '-')}"
    small_axes(axes, x="M", y="speedup over dense", title=name, powers_of_two="xy")


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


@paper_style
def draw_predictions(measurements: Iterable[Measurement], path: Path) -> Path | None:
    """A panel per family and dtype, both axes logarithmic; color = range of M. None if no measurement has a prediction."""
    panels = predictions(measurements)
    if not panels:
        return None
    figure = new_figure(len(panels), columns=4, height=2.0)
    colors = {one: SERIES_COLORS[place] for place, one in enumerate(M_CLASSES.values())}
    for ((family, dtype), shown), axes in zip(panels.items(), figure.axes):
        _draw_prediction(axes, shown, colors)
        errors = Errors.of(one.predicted_us / one.latency_us for one in shown)
        small_axes(axes, x="measured, us", y="predicted, us")
        axes.set_title(f"{family}, {dtype}\nmedian error {errors.median:.0%}, p90 {errors.p90:.0%}", fontsize=6)
    seen = {m_class(one.m) for shown in panels.values() for one in shown}
    for label in (label for label in colors if label in seen):
        figure.axes[0].plot([], [], "o", color=colors[label], label=label)
    figure.axes[0].legend(fontsize=5)
    return save_svg(figure, path)


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
            axes.scatter(*zip(*points), color=color, s=4, alpha=0.6, linewidths=0, zorder=3, rasterized=True)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if ends[1] < 100 * ends[0] else (1.0,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
