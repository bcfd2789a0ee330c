"""Which kernel is fastest at each M and sparsity, per granularity; where dense is, that is a loss and shown as one."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront.report.operators.measurements import Measurement
from sparsefront.report.series_style import DENSE_COLOUR, series_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_INCHES = (0.75, 0.5)
LEVEL_WIDTH = 0.03  # a small matrix of large blocks misses 90 % by up to 2.5 points

Panel = tuple[str, str, int, str]
"""dtype, layout, granularity, distribution: what the kernels of one panel have in common."""
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
        panel = (one.dtype, one.layout, one.weight.granularity, one.weight.distribution)
        cell = (one.m, _nearest(one.sparsity, levels[one.dtype]))
        times[panel][cell][one.kernel][one.k, one.n] = one.log_speedup
    return {panel: {cell: _fastest(kernels) for cell, kernels in cells.items()} for panel, cells in times.items()}


def write_winners_png(measurements: Sequence[Measurement], path: Path) -> Path:
    """A panel per granularity and distribution (columns), dtype and layout (rows); blank where nothing was measured.

    Raises:
        ValueError: there is no sparse measurement.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels = winners(measurements)
    if not panels:
        raise ValueError("nothing to draw: there is no sparse measurement")
    rows = sorted({panel[:2] for panel in panels})
    columns = sorted({panel[2:] for panel in panels}, key=lambda column: (-column[0], column[1]))
    kernels = sorted({winner.kernel for cells in panels.values() for winner in cells.values()})
    colours = {kernel: style.colour for kernel, style in series_styles(kernels).items()}
    sizes = sorted({m for cells in panels.values() for m, _ in cells})
    levels = sorted({level for cells in panels.values() for _, level in cells})
    width, height = CELL_INCHES[0] * len(levels), CELL_INCHES[1] * len(sizes)
    size = ((width + 0.2) * len(columns) + 0.8, (height + 0.6) * len(rows) + 0.7)
    figure = Figure(figsize=size, layout="constrained")  # not pyplot, which keeps state and looks for a screen
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    grid[0, 0].set_xticks([place + 0.5 for place in range(len(levels))], [f"{100 * level:g} %" for level in levels])
    grid[0, 0].set_yticks([place + 0.5 for place in range(len(sizes))], [f"M = {m}" for m in sizes])
    for row, line in zip(rows, grid, strict=True):
        for column, axes in zip(columns, line, strict=True):
            _draw_panel(axes, (*row, *column), panels.get((*row, *column), {}), colours, sizes, levels)
    patches = [Patch(color=colour, label=kernel) for kernel, colour in colours.items()]
    patches.append(Patch(color=DENSE_COLOUR, label="dense wins (figure: best sparse kernel)"))
    figure.legend(handles=patches, loc="outside lower center", ncols=min(4, len(patches)), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, format="png", pil_kwargs={"optimize": True})
    return path


def _draw_panel(
    axes: "Axes",
    panel: Panel,
    cells: dict[Cell, Winner],
    colours: dict[str, str],
    sizes: Sequence[int],
    levels: Sequence[float],
) -> None:
    from matplotlib.patches import Rectangle

    dtype, layout, granularity, distribution = panel
    for (m, level), winner in cells.items():
        corner = (levels.index(level), sizes.index(m))
        colour = DENSE_COLOUR if winner.loses else colours[winner.kernel]
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white"))
        middle = (corner[0] + 0.5, corner[1] + 0.5)
        axes.text(*middle, f"{winner.speedup:.2f}×", ha="center", va="center", color="white", fontsize=8)
    if not cells:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", fontsize=8)
    name = f"{granularity}, {distribution}" if distribution else str(granularity)
    axes.set_title(f"{name}\n{dtype}, {layout.replace('_', '-')}", fontsize=8)
    axes.set_xlim(0, len(levels))
    axes.set_ylim(0, len(sizes))
    axes.tick_params(length=0, labelsize=8)


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
