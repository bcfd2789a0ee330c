"""Figures of all pages: one width, one font size, colors by meaning (`sparsefront.results.plots`), SVG."""

from collections.abc import Callable
from functools import wraps
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefront.results import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT = 7.2, 2.9  # inches: two columns of a paper
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.framealpha": 0.8,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "svg.hashsalt": "sparsefront",  # equal figures give equal bytes
}
LEAST_OVERHANG = 0.01  # inches: below it is rounding
MARKERS = [marker for marker, _ in plots.MARKERS]


def paper_style(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that draws, so that all of its artists have `STYLE`."""

    @wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def new_figure(panels: int = 1, *, columns: int = 2, height: float = PANEL_HEIGHT) -> "Figure":
    """A figure with this many axes, without pyplot, which keeps global state and needs a display.

    Args:
        columns: most panels side by side.
        height: of a row of panels, in inches.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = ceil(panels / columns)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    FigureCanvasSVG(figure)
    for place in range(panels):
        figure.add_subplot(rows, columns, place + 1)
    return figure


def small_axes(axes: "Axes", *, x: str, y: str = "", title: str = "", powers_of_two: str = "") -> None:
    """Label a panel.

    Args:
        powers_of_two: axes with a log2 scale, "x" or "xy"; their ticks are plain numbers.
    """
    axes.set(title=title, xlabel=x, ylabel=y)
    for name in powers_of_two:
        getattr(axes, f"set_{name}scale")("log", base=2)
        getattr(axes, f"{name}axis").set_major_formatter("{x:g}")


def overhang(figure: "Figure") -> float:
    """Inches by which anything drawn, texts included, leaves the canvas; 0 or less if nothing does."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    drawn, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
    return max(-drawn.x0, -drawn.y0, drawn.x1 - width, drawn.y1 - height)


def save_svg(figure: "Figure", path: Path) -> Path:
    """Write the figure of a `paper_style` function. Raises ValueError if a text or anything else leaves the canvas."""
    inches = overhang(figure)
    if inches > LEAST_OVERHANG:
        raise ValueError(f"{path.name}: {inches:.2f} inches of what is drawn leave the canvas")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    return path
