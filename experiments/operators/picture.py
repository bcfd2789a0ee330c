"""Pictures as small PNG files."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
COLORS = 256


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; not of pyplot, which keeps state and looks for a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: "Figure", path: Path) -> Path:
    """Write the figure with a palette: a third of the bytes, and flat colors stay what they are to the eye."""
    import numpy as np
    from PIL import Image

    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Maximum coverage: by median cut a color of few pixels, such as a dot of a legend, becomes a mean with its neighbors.
    palette = picture.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(path, optimize=True)
    return path
