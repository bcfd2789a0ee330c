"""The plot of a study: accuracy on test, a panel for each network and table that has lines.

A color means one pattern. Filled markers are means over seeds, their bars the standard deviation; hollow ones are of one seed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.harness.figures import entry, new_figure, save_png
from experiments.studies.cells import Cell, Cells, of_table
from experiments.studies.definition import Point, Study, Table
from sparsefront.results.plots import DENSE_COLOR, MARKERS, pattern_color

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

PLOT = "accuracy.png"
WIDTH, LEGEND_HEIGHT, LEVELS_HEIGHT, ROW_HEIGHT, FRAME_HEIGHT = 10.0, 0.4, 4.0, 0.24, 1.2  # inches
DPI = 90
GREY = "#777777"
DENSE_LINES = {"dense": ("dense", "-"), "dense_continued": ("continued dense", ":")}  # metric -> its label and line
DASHES = ("-", "--", "-.", ":")
MARGIN = 5.0  # of the axis of sparsities beyond what was asked for, in points
LEAST_SPAN = 3.0  # of an axis of the metric, in points: noise is not magnified
TICK = 0.42  # half the height of a dense network's mark, in lines
# Enough for the lines of any table: in one panel no marker stands for two.
SHAPES = (*(marker for marker, _ in MARKERS), "h", "d", "8", "*")

Entries = list[tuple[Point, Cell]]


@dataclass(frozen=True)
class Panel:
    """A table of one network, as far as it was measured; `empty`: the cells without an accuracy."""

    table: Table
    network: str
    measured: Entries
    empty: Entries

    @property
    def title(self) -> str:
        return f"{self.table.title}: {self.network}"

    @property
    def rows(self) -> list[str]:
        """The table's lines, in its order."""
        return list(dict.fromkeys(point.row for point, _ in self.measured))

    @property
    def columns(self) -> list[str]:
        """In the order of the table."""
        found = {point.column for point, _ in self.measured}
        return [column for column in self.table.columns if column in found]

    @property
    def by_sparsity(self) -> bool:
        """Whether accuracy is drawn by sparsity: of tables of levels, from two of them on, with a marker for each line."""
        return self.table.levels and len(self.columns) > 1 and len(self.rows) <= len(SHAPES)

    @property
    def metric(self) -> str:
        return self.measured[0][1].measured[0]["metric_name"]

    @property
    def standard_error(self) -> float | None:
        """Of the dense network's metric on test, in points; it says what one seed is worth."""
        return self.measured[0][1].per_cent("dense_standard_error")

    def series(self) -> dict[tuple[str, str], list[Cell]]:
        """(line, pattern) -> its cells by sparsity: what one line joins."""
        found: dict[tuple[str, str], list[Cell]] = {}
        for point, cell in self.measured:
            found.setdefault((point.row, pattern_of(cell)), []).append(cell)
        for cells in found.values():
            cells.sort(key=sparsity_of)
        return found


def panels(study: Study, cells: Cells) -> Iterator[Panel]:
    """Those with anything measured, network by network."""
    for network in study.networks:
        for table in study.tables:
            entries = of_table(cells, table, network)
            if measured := [(point, cell) for point, cell in entries if cell.seeds]:
                yield Panel(table, network, measured, [(point, cell) for point, cell in entries if not cell.seeds])


def pattern_of(cell: Cell) -> str:
    return cell.measured[0]["pattern"]


def sparsity_of(cell: Cell) -> float:
    """What the network has, in per cent."""
    return 100 * float(cell.measured[0]["sparsity_achieved"])


def draw(study: Study, cells: Cells, path: Path) -> bool:
    """Write the plot; False, and no file, where nothing was measured.

    Tables of levels are drawn by sparsity, a line for each line of the table and pattern; others line by line, beside one
    another for each column, with the dense network of the same seeds and the same trained on at each line.
    """
    found = list(panels(study, cells))
    if not found:
        return False
    heights = [LEGEND_HEIGHT, *(_height(panel) for panel in found)]
    figure = new_figure(WIDTH, sum(heights), DPI)
    legend, *parts = figure.subfigures(len(heights), height_ratios=heights)
    marks = _marks([entry for panel in found for entry in panel.measured])
    legend.legend(handles=marks, fontsize=8, loc="center", ncols=len(marks), frameon=False)
    for panel, part in zip(found, parts):
        part.suptitle(panel.title, fontsize=10)
        if panel.by_sparsity:
            _draw_levels(panel, part)
        else:
            _draw_rows(panel, part)
    save_png(figure, path)
    return True


def _height(panel: Panel) -> float:
    return LEVELS_HEIGHT if panel.by_sparsity else FRAME_HEIGHT + ROW_HEIGHT * len(panel.rows)


def _draw_levels(panel: Panel, part: "SubFigure") -> None:
    axes, of_pattern = part.subplots(), Counter()
    for (row, pattern), cells in panel.series().items():
        dashes = DASHES[of_pattern[pattern] % len(DASHES)]
        of_pattern[pattern] += 1
        shape, color = SHAPES[panel.rows.index(row)], pattern_color(pattern)
        x, y = [sparsity_of(cell) for cell in cells], [cell.per_cent("masked") for cell in cells]
        axes.plot(x, y, color=color, linewidth=1, linestyle=dashes, zorder=1)
        for cell in cells:
            _draw_mark(axes, sparsity_of(cell), cell.per_cent("masked"), shape, cell, upright=True)
        axes.plot([], [], color=color, marker=shape, linewidth=1, linestyle=dashes, label=row)
    for name, (_, style) in DENSE_LINES.items():
        if (value := _mean_of_seeds(panel, name)) is not None:
            axes.axhline(value, color=DENSE_COLOR, linewidth=1, linestyle=style, zorder=0)
    asked = [100 * float(cell.measured[0]["sparsity_target"]) for _, cell in panel.measured]
    reached = [sparsity_of(cell) for _, cell in panel.measured]
    axes.set_xlim(min(asked + reached) - MARGIN, min(max(asked + reached) + MARGIN, 100))
    axes.set(xlabel="sparsity, %", ylabel=_metric_text(panel))
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_rows(panel: Panel, part: "SubFigure") -> None:
    rows, columns = panel.rows, panel.columns
    facets = part.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for column, axes in zip(columns, facets):
        for point, cell in panel.measured:
            if point.column == column:
                place = rows.index(point.row)
                for name, (_, style) in DENSE_LINES.items():
                    if (value := cell.per_cent(name)) is not None:
                        axes.vlines(value, place - TICK, place + TICK, color=DENSE_COLOR, linewidth=1, linestyle=style)
                _draw_mark(axes, cell.per_cent("masked"), place, "o", cell, upright=False)
        for point, cell in panel.empty:
            if point.column == column and point.row in rows:
                said, style = (
                    "unsupported" if cell.unsupported else "missing",
                    {"color": GREY, "fontsize": 7, "va": "center"},
                )
                axes.text(0.02, rows.index(point.row), said, transform=axes.get_yaxis_transform(), **style)
        axes.set_title(column, fontsize=9)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)  # the first line on top
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(axis="y", linewidth=0.4, alpha=0.6)
        axes.margins(x=0.08)
        low, high = axes.get_xlim()
        short = max(LEAST_SPAN - (high - low), 0) / 2
        axes.set_xlim(low - short, high + short)
    part.supxlabel(_metric_text(panel), fontsize=8)


def _draw_mark(axes: "Axes", x: float, y: float, shape: str, cell: Cell, *, upright: bool) -> None:
    """One cell; `upright`: the metric is y."""
    color, deviation = pattern_color(pattern_of(cell)), cell.spread("masked")
    errors = {"yerr" if upright else "xerr": deviation} if deviation is not None else {}
    face = "white" if deviation is None else color
    axes.errorbar(
        x, y, **errors, marker=shape, color=color, markerfacecolor=face, capsize=2, linestyle="none", markersize=5.5
    )


def _mean_of_seeds(panel: Panel, name: str) -> float | None:
    """Of a dense network's metric, in per cent; None where lines of one seed have several, as of several rates."""
    of_seed: dict[str, set[float]] = {}
    for _, cell in panel.measured:
        for line in cell.measured:
            if line[name]:
                of_seed.setdefault(line["seed"], set()).add(100 * float(line[name]))
    if not of_seed or any(len(values) > 1 for values in of_seed.values()):
        return None
    return sum(value for values in of_seed.values() for value in values) / len(of_seed)


def _metric_text(panel: Panel) -> str:
    error = "" if panel.standard_error is None else f" (standard error {panel.standard_error:.1f})"
    return f"{panel.metric} on test, %{error}"


def _marks(measured: Entries) -> list["Artist"]:
    """The legend of all panels: dense networks, the patterns, and what filled and hollow means."""
    cells = [cell for _, cell in measured]
    names = [name for name in DENSE_LINES if any(cell.per_cent(name) is not None for cell in cells)]
    lines = [
        entry(label, DENSE_COLOR, linewidth=1, linestyle=style) for label, style in map(DENSE_LINES.__getitem__, names)
    ]
    marks = {pattern: (pattern_color(pattern),) * 2 for pattern in map(pattern_of, cells)}
    marks |= {"mean of seeds ± sd": (GREY, GREY)} if any(cell.seeds > 1 for cell in cells) else {}
    marks |= {"one seed": (GREY, "white")} if any(cell.seeds == 1 for cell in cells) else {}
    style = {"marker": "o", "linestyle": "none", "markersize": 5.5}
    return lines + [entry(label, color, markerfacecolor=face, **style) for label, (color, face) in marks.items()]
