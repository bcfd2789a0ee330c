"""Density of every prunable layer as a bar chart: what the allocation made of one target."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefront.artifacts.durable import whole_file
from sparsefront.printable import plot_text
from sparsefront.report.mask_image import KEPT_COLOR
from sparsefront.report.result import Result
from sparsefront.report.series_style import DENSE_COLOR, FRONT_COLOR

WIDTH_INCHES, BAR_INCHES, FRAME_INCHES = 7.2, 0.17, 1.3


@dataclass(frozen=True)
class LayerDensity:
    """Kept fraction of one layer's weights, in [0, 1]; `stays_dense`: it was not pruned, for a reason in the result."""

    layer: str
    density: float
    stays_dense: bool


def layer_densities(result: Result) -> list[LayerDensity]:
    """All prunable layers of a run, in the network's order."""
    dense = result.sparsity.dense_layers
    return [
        LayerDensity(layer, 1 - sparsity, stays_dense=layer in dense)
        for layer, sparsity in result.sparsity.sparsity_per_layer.items()
    ]


def write_density_png(densities: Sequence[LayerDensity], path: Path, *, target: float | None, title: str) -> Path:
    """Draw one bar per layer, and a line where a density was asked for.

    Args:
        densities: at least one.
        target: density over all prunable weights; None where a latency was asked for.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = FRAME_INCHES + BAR_INCHES * len(densities)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for stays_dense, color, label in ((False, KEPT_COLOR, "pruned"), (True, FRONT_COLOR, "stayed dense")):
        bars = [(place, bar.density) for place, bar in enumerate(densities) if bar.stays_dense is stays_dense]
        if bars:
            places, lengths = zip(*bars)
            axes.barh(places, lengths, height=0.8, color=color, label=label)
    if target is not None:
        axes.axvline(target, color=DENSE_COLOR, linewidth=1.2, linestyle="--", label=f"target {target:.3g}")
    axes.set_yticks(range(len(densities)), [plot_text(bar.layer) for bar in densities], fontsize=6)
    axes.set_ylim(len(densities) - 0.4, -0.6)  # the first layer on top
    axes.set_xlim(0, 1)
    axes.set_xlabel("density, fraction of weights kept")
    axes.set_title(plot_text(title), fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        figure.savefig(new, dpi=120, format="png")
    return path
