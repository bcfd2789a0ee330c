"""Helpers for small PNG figures: headless figures, palettes, axes, legends, and grids of colored cells."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

DPI = 100
COLORS = 256
LIGHT = 0.2  # relative luminance above which black text reads better than white

Grid = Mapping[tuple[int, int], tuple[str, str]]
"""(column, row) -> color and text of a cell; missing cells stay empty."""


def new_figure(width: float, height: float, dpi: int = DPI) -> "Figure":
    """Return an empty figure, size in inches, without pyplot, which keeps global state and needs a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: "Figure", path: Path) -> Path:
    """Write the figure with a color palette: a third of the bytes, with no visible change of flat colors."""
    import numpy as np
    from PIL import Image

    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Maximum coverage, since median cut would average rare colors, such as a legend's dots, with their neighbors.
    palette = picture.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)
    return path


def small_axes(axes: "Axes", *, x: str, title: str = "", powers_of_two: str = "") -> None:
    """Set up one panel of many: small text and a light grid.

    Args:
        x: label of the x axis.
        powers_of_two: axes with a log2 scale, "x" or "xy"; their ticks are plain numbers.
    """
    for name in powers_of_two:
        getattr(axes, f"set_{name}scale")("log", base=2)
        getattr(axes, f"{name}axis").set_major_formatter("{x:g}")
    if title:
        axes.set_title(title, fontsize=8)
    axes.set_xlabel(x, fontsize=8)
    axes.tick_params(labelsize=7, which="both")
    axes.grid(alpha=0.25)


def hide(panels: Iterable["Axes"]) -> None:
    """Hide unused panels of a grid."""
    for axes in panels:
        axes.set_axis_off()


def entry(label: str, color: str, **style: Any) -> "Line2D":
    """A legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, label=label, **style)


def legend_below(figure: "Figure", entries: Sequence["Artist"], columns: int) -> None:
    """One legend for all panels."""
    figure.legend(handles=entries, loc="outside lower center", ncols=columns, fontsize=7)


def draw_grid(axes: "Axes", cells: Grid, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draw a table of colored cells, the first row at the bottom."""
    from matplotlib.patches import Rectangle

    for (column, row), (color, text) in cells.items():
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor="white"))
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=_text_color(color), fontsize=7)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(0, len(rows))
    axes.set_xticks([place + 0.5 for place in range(len(columns))], columns)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.tick_params(length=0, labelsize=7)


def _text_color(background: str) -> str:
    """Black on light colors, white on dark ones, by relative luminance."""
    from matplotlib.colors import to_rgb

    luminance = sum(weight * part**2.2 for weight, part in zip((0.21, 0.72, 0.07), to_rgb(background), strict=True))
    return "black" if luminance > LIGHT else "white"
