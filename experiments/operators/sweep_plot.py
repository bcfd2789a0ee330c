"""Speedup over dense against M, for the weights that were measured with most M: where a batch is large enough to win."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront_kernels.problem import LAYOUTS

from experiments.operators.measurements import Measurement
from experiments.operators.picture import new_figure, save_png
from sparsefront.results.plots import DENSE_COLOR, SERIES_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (3.4, 2.7)
MOST_PANELS = 4  # of one layout
FEWEST_SIZES = 5  # of M, of a weight that is shown
OURS = "gathered"

Line = dict[int, float]
"""M -> speedup of the fastest kernel."""


@dataclass
class Sweep:
    """One (K, N) in one layout.

    Args:
        granularity: of ours, the one with most M.
        ours: asked sparsity -> our fastest kernel.
        peers: asked sparsity -> the fastest kernel of another library, in any layout and of any granularity.
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
    """Those with enough M, of each layout those with most of them; equal tiles only."""
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
    from matplotlib.lines import Line2D

    found = sweeps(measurements)
    if not found:
        raise ValueError(f"nothing to draw: no weight was measured with {FEWEST_SIZES} values of M")
    layouts = [layout for layout in LAYOUTS if any(one.layout == layout for one in found)]
    rows = [[one for one in found if one.layout == layout] for layout in layouts]
    columns = max(len(row) for row in rows)
    levels = sorted({level for one in found for level in one.ours})
    colors = {level: SERIES_COLORS[place % len(SERIES_COLORS)] for place, level in enumerate(levels)}
    figure = new_figure(PANEL_INCHES[0] * max(2, columns), PANEL_INCHES[1] * len(rows) + 0.5)
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=True)
    for row, line in zip(rows, grid, strict=True):
        for sweep, axes in zip(row, line, strict=False):
            _draw(axes, sweep, colors)
        for axes in line[len(row) :]:
            axes.set_axis_off()
        line[0].set_ylabel("speedup over dense", fontsize=8)
    handles = [
        Line2D([], [], color=color, marker="o", markersize=4, label=f"{100 * level:g} %")
        for level, color in colors.items()
    ]
    handles.append(Line2D([], [], color="#555555", linestyle="--", label="fastest peer, its own pattern and layout"))
    handles.append(Line2D([], [], color=DENSE_COLOR, linewidth=0.8, label="dense"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7)
    return save_png(figure, path)


def _keep_faster(lines: dict[float, Line], one: Measurement) -> None:
    level = round(one.sparsity, 2) if one.asked_sparsity is None else one.asked_sparsity
    line = lines[level]
    line[one.m] = max(line.get(one.m, 0.0), exp(one.log_speedup))


def _draw(axes: "Axes", sweep: Sweep, colors: dict[float, str]) -> None:
    for level, color in colors.items():
        for lines, style in ((sweep.ours, "-"), (sweep.peers, "--")):
            points: Sequence[tuple[int, float]] = sorted(lines.get(level, {}).items())
            if points:
                marker = {"marker": "o", "markersize": 3} if style == "-" else {}
                axes.plot(*zip(*points), color=color, linestyle=style, linewidth=1.1, alpha=0.9, **marker)
    axes.axhline(1.0, color=DENSE_COLOR, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(
        f"{sweep.k} → {sweep.n}, granularity {sweep.granularity}\n{sweep.layout.replace('_', '-')}", fontsize=8
    )
    axes.set_xlabel("M", fontsize=8)
    axes.tick_params(labelsize=7, which="both")
    axes.grid(alpha=0.25)
