"""Which kernel is fastest at each M and sparsity, per granularity; where dense is, that is a loss and shown as one."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from sparsefront_kernels.problem import LAYOUTS

from experiments.operators.measurements import Measurement
from experiments.operators.picture import draw_grid, new_figure, save_png
from sparsefront.results.plots import DENSE_COLOR, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_INCHES = (0.6, 0.27)
TITLE_WIDTH = 60  # characters; those of a pattern's own masks name all its settings
LEVEL_WIDTH = 0.03  # a small matrix of large blocks misses 90 % by up to 2.5 points

Panel = tuple[str, str, int, str, str]
"""dtype, layout, granularity, distribution, family: what the kernels of one panel have in common."""
Cell = tuple[int, float]
"""M, sparsity level."""


@dataclass(frozen=True)
class Winner:
    """The fastest sparse kernel of a cell: its geometric mean speedup over the cell's shapes; below 1 dense wins."""

    kernel: str
    speedup: float

    @property
    def loses(self) -> bool:
        return self.speedup <= 1


def winners(measurements: Iterable[Measurement]) -> dict[Panel, dict[Cell, Winner]]:
    """The fastest kernel of each cell, among those with a right product for every shape that the cell has."""
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
    """A panel per layout (columns), and per granularity and distribution (rows), family after family.

    Nothing is drawn where nothing was measured. A row of panels has the values of M that its unit was measured with.

    Raises:
        ValueError: there is no sparse measurement, or measurements of several dtypes.
    """
    from matplotlib.patches import Patch

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
        named = False  # the first panel of a row names the values of M
        for layout, axes in zip(layouts, line, strict=True):
            cells = panels.get((dtype, layout, *unit), {})
            if not cells:
                axes.set_axis_off()
                continue
            _draw_panel(axes, (dtype, layout, *unit), cells, colors, sizes[unit], levels)
            axes.tick_params(labelleft=not named)
            named = True
    patches = [Patch(color=color, label=kernel) for kernel, color in colors.items()]
    patches.append(Patch(color=DENSE_COLOR, label="dense wins (figure: best sparse)"))
    figure.legend(handles=patches, loc="outside lower center", ncols=legend_columns, fontsize=7)
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
    """Sparsities, in whole percent, that some kernel has in every one of its shapes at some M: what was asked for."""
    seen: dict[tuple, dict[tuple[int, int], set[float]]] = defaultdict(lambda: defaultdict(set))
    for one in measurements:
        seen[one.kernel, one.weight, one.layout, one.m][one.k, one.n].add(round(one.sparsity, 2))
    return sorted(set.union(*(set.intersection(*shapes.values()) for shapes in seen.values())))


def _nearest(sparsity: float, levels: Sequence[float]) -> float:
    """The level that was meant, or where none is near the sparsity itself in whole percent."""
    near = [level for level in levels if abs(level - sparsity) <= LEVEL_WIDTH]
    return min(near, key=lambda level: abs(level - sparsity), default=round(sparsity, 2))


def _fastest(kernels: dict[str, dict[tuple[int, int], float]]) -> Winner:
    shapes = set.union(*(set(logs) for logs in kernels.values()))
    means = {name: sum(logs.values()) / len(logs) for name, logs in kernels.items() if len(logs) == len(shapes)}
    if not means:  # no kernel has all shapes: those with the most are the fairest
        most = max(len(logs) for logs in kernels.values())
        means = {name: sum(logs.values()) / most for name, logs in kernels.items() if len(logs) == most}
    best = max(means, key=means.__getitem__)
    return Winner(best, exp(means[best]))
