"""The fastest kernel by M and sparsity, and by M for one weight; cells in which dense wins are shown as losses."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from sparsefront_kernels.problem import LAYOUTS

from experiments.harness.figures import draw_grid, legend_below, new_figure, save_png
from experiments.harness.rows import write
from experiments.operators.measurements import FEWEST_SIZES, SAME_SPARSITY, Measurement, Weight
from sparsefront.results.plots import DENSE_COLOR, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

CELL_INCHES = (0.6, 0.27)
TITLE_WIDTH = 60  # characters; titles of a pattern's own masks list all its settings
LEVEL_WIDTH = 0.03  # a small matrix with large blocks misses 90 % by up to 2.5 points

Panel = tuple[str, str, int, str, str]
"""dtype, layout, granularity, distribution, family: what the kernels of one panel have in common."""
Cell = tuple[int, float]
"""M, sparsity level."""


@dataclass(frozen=True)
class Winner:
    """The fastest sparse kernel of a cell, with its geometric mean speedup over the cell's shapes; below 1, dense wins."""

    kernel: str
    speedup: float

    @property
    def loses(self) -> bool:
        return self.speedup <= 1


def winners(measurements: Iterable[Measurement]) -> dict[Panel, dict[Cell, Winner]]:
    """The fastest kernel of each cell, among those with a correct product for all of its shapes."""
    sparse = [one for one in measurements if one.weight.family != "dense"]
    levels = {dtype: _levels(one for one in sparse if one.dtype == dtype) for dtype in {one.dtype for one in sparse}}
    times: dict[Panel, dict[Cell, dict[str, dict[tuple[int, int], float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for one in sparse:
        panel = (one.dtype, one.layout, one.weight.granularity, one.weight.distribution, one.weight.family)
        asked = one.asked_sparsity
        cell = (one.m, _nearest(one.sparsity, levels[one.dtype]) if asked is None else asked)
        times[panel][cell][one.product_kernel][one.k, one.n] = one.log_speedup
    return {panel: {cell: _fastest(kernels) for cell, kernels in cells.items()} for panel, cells in times.items()}


def write_winners_png(measurements: Sequence[Measurement], path: Path) -> Path:
    """A panel per layout (columns), and per granularity and distribution (rows), grouped by family.

    Cells without measurements stay empty. A row of panels shows the values of M measured for its granularity.

    Raises:
        ValueError: no sparse measurements, or several dtypes.
    """
    panels = winners(measurements)
    if not panels:
        raise ValueError("nothing to draw: there is no sparse measurement")
    dtype, *others = {panel[0] for panel in panels}
    if others:
        raise ValueError(f"one picture is of one dtype, not of {', '.join(sorted([dtype, *others]))}")
    layouts = [layout for layout in LAYOUTS if any(panel[1] == layout for panel in panels)]
    units = sorted({panel[2:] for panel in panels}, key=lambda unit: (unit[2], -unit[0], unit[1]))
    kernels = sorted({winner.kernel for cells in panels.values() for winner in cells.values()})
    colors = {kernel: style.color for kernel, style in series_styles(kernels).items()}
    levels = sorted({level for cells in panels.values() for _, level in cells})
    sizes = {unit: sorted({m for panel in panels if panel[2:] == unit for m, _ in panels[panel]}) for unit in units}
    width, heights = CELL_INCHES[0] * len(levels), [CELL_INCHES[1] * len(sizes[unit]) for unit in units]
    figure_width = max((width + 0.2) * len(layouts) + 1.0, 4.0)
    legend_columns = max(1, min(int(figure_width / 2.0), len(kernels) + 1))
    legend_lines = -(-(len(kernels) + 1) // legend_columns)
    figure = new_figure(figure_width, sum(heights) + 0.55 * len(units) + 0.2 * legend_lines + 0.3)
    grid = figure.subplots(len(units), len(layouts), squeeze=False, height_ratios=heights)
    for unit, line in zip(units, grid, strict=True):
        named = False  # the first panel of a row labels the values of M
        for layout, axes in zip(layouts, line, strict=True):
            cells = panels.get((dtype, layout, *unit), {})
            if not cells:
                axes.set_axis_off()
                continue
            _draw_panel(axes, (dtype, layout, *unit), cells, colors, sizes[unit], levels)
            axes.tick_params(labelleft=not named)
            named = True
    legend_below(figure, _legend(colors), legend_columns)
    return save_png(figure, path)


def _draw_panel(
    axes: "Axes",
    panel: Panel,
    cells: dict[Cell, Winner],
    colors: dict[str, str],
    sizes: Sequence[int],
    levels: Sequence[float],
) -> None:
    dtype, layout, granularity, distribution, family = panel
    grid = {
        (levels.index(level), sizes.index(m)): (
            DENSE_COLOR if winner.loses else colors[winner.kernel],
            f"{winner.speedup:.2f}×",
        )
        for (m, level), winner in cells.items()
    }
    draw_grid(axes, grid, [f"{100 * level:g} %" for level in levels], [f"M = {m}" for m in sizes])
    name = fill(f"{family} {granularity}" + (f", {distribution}" if distribution else ""), TITLE_WIDTH)
    axes.set_title(f"{name}\n{dtype}, {layout.replace('_', '-')}", fontsize=8)


def _levels(measurements: Iterable[Measurement]) -> list[float]:
    """Requested sparsities, in whole percent: those that some kernel has in all of its shapes at some M."""
    seen: dict[tuple, dict[tuple[int, int], set[float]]] = defaultdict(lambda: defaultdict(set))
    for one in measurements:
        seen[one.kernel, one.weight, one.layout, one.m][one.k, one.n].add(round(one.sparsity, 2))
    return sorted(set.union(*(set.intersection(*shapes.values()) for shapes in seen.values())))


def _nearest(sparsity: float, levels: Sequence[float]) -> float:
    """The nearest level or, if none is near, the sparsity itself in whole percent."""
    near = [level for level in levels if abs(level - sparsity) <= LEVEL_WIDTH]
    return min(near, key=lambda level: abs(level - sparsity), default=round(sparsity, 2))


def _fastest(kernels: dict[str, dict[tuple[int, int], float]]) -> Winner:
    shapes = set.union(*(set(logs) for logs in kernels.values()))
    means = {name: sum(logs.values()) / len(logs) for name, logs in kernels.items() if len(logs) == len(shapes)}
    if not means:  # no kernel has all shapes, so take those with the most
        most = max(len(logs) for logs in kernels.values())
        means = {name: sum(logs.values()) / most for name, logs in kernels.items() if len(logs) == most}
    best = max(means, key=means.__getitem__)
    return Winner(best, exp(means[best]))


def _legend(colors: Mapping[str, str]) -> list["Patch"]:
    """Legend entries: the kernels' colors, and dense."""
    from matplotlib.patches import Patch

    patches = [Patch(color=color, label=kernel) for kernel, color in colors.items()]
    return [*patches, Patch(color=DENSE_COLOR, label="dense wins (figure: best sparse)")]


# For one weight: the fastest kernel at each M, the M at which the fastest changes, and up to which M it beats dense.

BY_M_INCHES, LEGEND_COLUMNS = (0.5, 0.22), 4
DENSE = "dense"
CSV_COLUMNS = "family pattern granularity distribution dtype layout k n sparsity m kernel speedup".split()
CSV_COLUMNS += ["next_kernel", "crosses_at_m", "crosses_dense_at_m"]


@dataclass(frozen=True)
class Problem:
    """A product with any M."""

    weight: Weight
    dtype: str
    layout: str
    k: int
    n: int
    sparsity: float


@dataclass(frozen=True)
class Crossing:
    """The fastest kernel changes between two neighboring M.

    Args:
        before, after: the fastest kernel at the smaller and at the larger M.
        low, high: the two M.
        at: M at which both take equally long, with ln(time ratio) linear in ln(M); None if one of them was not measured at
            both M.
    """

    before: str
    after: str
    low: int
    high: int
    at: float | None


@dataclass
class Times:
    """Latencies of a problem in µs: M -> kernel -> time, and M -> time of the fastest dense kernel."""

    kernels: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    dense: dict[int, float] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return sorted(self.kernels)

    def fastest(self, m: int) -> str:
        return min(self.kernels[m], key=self.kernels[m].__getitem__)

    def speedup(self, m: int) -> float:
        """Speedup of the fastest kernel over dense."""
        return self.dense[m] / min(self.kernels[m].values())

    def crossings(self) -> list[Crossing]:
        """Crossings between sparse kernels, by rising M."""
        return _crossings({m: (self.fastest(m), self.kernels[m]) for m in self.sizes})

    def dense_crossings(self) -> list[Crossing]:
        """Crossings between the fastest sparse kernel and dense."""
        best = {m: {"sparse": min(self.kernels[m].values()), DENSE: self.dense[m]} for m in self.sizes}
        return _crossings({m: (min(times, key=times.__getitem__), times) for m, times in best.items()})


def times_by_m(measurements: Iterable[Measurement]) -> dict[Problem, Times]:
    """Times of sparse weights with at least `FEWEST_SIZES` M and more than one kernel."""
    found: dict[Problem, Times] = defaultdict(Times)
    for one in measurements:
        if one.weight.family == DENSE:
            continue
        problem = Problem(one.weight, one.dtype, one.layout, one.k, one.n, round(one.sparsity, SAME_SPARSITY))
        times = found[problem]
        times.kernels[one.m][one.product_kernel] = one.latency_us
        times.dense[one.m] = one.dense_us
    return {
        problem: times
        for problem, times in found.items()
        if len(times.sizes) >= FEWEST_SIZES and len({name for each in times.kernels.values() for name in each}) > 1
    }


def write_by_m_csv(found: dict[Problem, Times], path: Path) -> Path:
    """A line per problem and M: the fastest kernel, its speedup over the fastest dense layout of the same process and dtype, the
    fastest kernel at the next M if it differs, and the M at which these two, and sparse and dense, take equally long; empty if
    unknown.
    """
    lines = []
    for problem, times in found.items():
        crossings = {one.low: one for one in times.crossings()}
        dense = {one.low: one for one in times.dense_crossings()}
        about = (*problem.weight, problem.dtype, problem.layout, problem.k, problem.n, f"{problem.sparsity:g}")
        for m in times.sizes:
            after = crossings[m].after if m in crossings else ""
            ends = [f"{of[m].at:.3g}" if m in of and of[m].at else "" for of in (crossings, dense)]
            lines.append([*about, m, times.fastest(m), f"{times.speedup(m):.4g}", after, *ends])
    return write(path, CSV_COLUMNS, [dict(zip(CSV_COLUMNS, line, strict=True)) for line in lines])


def write_by_m_png(found: dict[Problem, Times], path: Path) -> Path:
    """The fastest kernel by M, or dense, for the [N, K] with the most problems per dtype and layout."""
    panels = _largest(found)
    shown = [times for part in panels.values() for times in part.values()]
    names = sorted({times.fastest(m) for times in shown for m in times.sizes if times.speedup(m) > 1})
    colors = {kernel: style.color for kernel, style in series_styles(names).items()}
    heights = [BY_M_INCHES[1] * len(part) + 0.6 for part in panels.values()]
    sizes = [sorted({m for times in part.values() for m in times.sizes}) for part in panels.values()]
    figure = new_figure(BY_M_INCHES[0] * max(map(len, sizes)) + 2.8, sum(heights) + 0.6)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for ((dtype, layout, k, n), part), of_part, axes in zip(panels.items(), sizes, grid, strict=True):
        rows = list(part)[::-1]  # the first on top
        cells = {
            (of_part.index(m), rows.index(problem)): (
                colors[times.fastest(m)] if times.speedup(m) > 1 else DENSE_COLOR,
                f"{times.speedup(m):.2f}",
            )
            for problem, times in part.items()
            for m in times.sizes
        }
        labels = [f"{problem.weight.label}, {100 * problem.sparsity:g} %" for problem in rows]
        draw_grid(axes, cells, [str(m) for m in of_part], labels)
        axes.set_title(
            f"{dtype}, {layout.replace('_', '-')}, {k} → {n}: fastest kernel by M, speedup over dense", fontsize=8
        )
    legend_below(figure, _legend(colors), LEGEND_COLUMNS)
    return save_png(figure, path)


def _largest(found: dict[Problem, Times]) -> dict[tuple[str, str, int, int], dict[Problem, Times]]:
    """(dtype, layout, K, N) -> its problems, for the (K, N) with the most problems per dtype and layout."""
    groups: dict[tuple[str, str, int, int], dict[Problem, Times]] = defaultdict(dict)
    for problem, times in found.items():
        groups[problem.dtype, problem.layout, problem.k, problem.n][problem] = times
    largest: dict[tuple[str, str], tuple[str, str, int, int]] = {}
    for key, part in groups.items():
        if len(part) > len(groups.get(largest.get(key[:2]), {})):
            largest[key[:2]] = key
    return {key: groups[key] for key in largest.values()}


def _crossings(by_m: dict[int, tuple[str, dict[str, float]]]) -> list[Crossing]:
    """Crossings by rising M, from M -> (name of the fastest, times of all)."""
    found = []
    for (low, (before, first)), (high, (after, last)) in pairwise(by_m.items()):
        if before == after:
            continue
        at = None
        if after in first and before in last:
            behind, ahead = log(first[after] / first[before]), log(last[before] / last[after])
            share = behind / (behind + ahead) if behind + ahead else 0.0  # equally fast at both
            at = exp(log(low) + share * log(high / low))
        found.append(Crossing(before, after, low, high, at))
    return found
