"""Draw retention.svg from retention.csv, a dot per pattern and allocation, a panel per sparsity; print the README's table.

    python -m experiments.pattern_retention.draw [--model DIR]        (DIR as for measure.py)

With --model it also draws docs/patterns/<pattern>.png: each pattern's mask on the first 64 outputs x 64 inputs of a query layer,
by magnitude, all at the same sparsity. Groups are at most a quarter of their usual size, so that several fit.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
from torch import Tensor

from experiments.harness.figures import new_figure, paper_style, save_svg, small_axes
from experiments.harness.page import row
from experiments.pattern_retention.measure import HERE, composed, read_importance
from sparsefront.config.settings import build_settings
from sparsefront.masks.groups import Boundaries
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.base import Pattern
from sparsefront.results.mask_pictures import Scale, mask_image, write_panels
from sparsefront.results.plots import FRONT_COLOR, pattern_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAR = 0.02
PATTERNS = HERE.parents[1] / "docs" / "patterns"
LAYER, SIDE, SPARSITY = "bert.encoder.layer.0.attention.self.query", 64, 0.75
SCALE = Scale(cell=3)

# File name -> overrides of run.py that choose the pattern.
PICTURES = {
    "element_wise": "pattern=element_wise",
    "n_m": "pattern=n_m pattern.m=4",
    "vector_wise": "pattern=vector_wise granularity=8",
    "block_wise": "pattern=block_wise granularity=8",
    "tile_wise": "pattern=tile_wise granularity=16",
    "tile_wise_overlay": "pattern=tile_wise granularity=16 pattern.element_overlay=0.05",
    "uniform": "pattern=uniform granularity=2",
    "channel": "pattern=channel",
    "shuffled_block": "pattern=shuffled_block granularity=8",
    "tile_2_4": "pattern=tile_2_4 granularity=16",
    "block_2_4": "pattern=block_2_4 granularity=16",
}


@paper_style
def draw(table: pandas.DataFrame, path: Path) -> None:
    """Draw the plot; patterns are sorted by what they retain at the lowest sparsity with their own allocation."""
    measured = at_their_sparsity(table)
    own = measured[measured.is_default & (measured.sparsity == measured.sparsity.min())]
    last = [name for name in table.setting.unique() if name not in set(own.setting)]
    settings = [*own.sort_values("relative", ascending=False, kind="stable").setting, *last]
    sparsities = sorted(table.sparsity.unique())
    figure = new_figure(len(sparsities), columns=len(sparsities), height=0.14 * len(settings) + 0.8)
    for axes, sparsity in zip(figure.axes, sparsities):
        _draw_panel(axes, measured[measured.sparsity == sparsity], settings)
        small_axes(axes, x="retained", title=f"sparsity {sparsity:g}")
        axes.tick_params(labelleft=axes is figure.axes[0])
    save_svg(figure, path)


def at_their_sparsity(table: pandas.DataFrame) -> pandas.DataFrame:
    """Drop unsupported rows, and those with mostly dense layers, whose sparsity is far from the requested one."""
    return table[(table.sparsity_achieved - table.sparsity).abs() <= NEAR]


def markdown(table: pandas.DataFrame) -> str:
    """The table: per setting, `relative` at each sparsity and seconds at the lowest, as own allocation | per_layer."""
    measured = at_their_sparsity(table).set_index(["setting", "allocation", "sparsity"])
    own = table[table.is_default].groupby("setting", sort=False).allocation.first()
    sparsities = sorted(table.sparsity.unique())

    def text(setting: str, allocation: str, column: str, sparsity: float, digits: str) -> str:
        key = setting, allocation, sparsity
        return format(measured.at[key, column], digits) if key in measured.index else "–"

    lines = []
    for setting, allocation in own.items():
        cells = [
            " / ".join(text(setting, name, "relative", sparsity, ".3f") for sparsity in sparsities)
            for name in (allocation, "per_layer")
        ]
        cells[0] = "per_layer" if allocation == "per_layer" else cells[0]
        lines.append(row([setting, *cells, text(setting, allocation, "seconds", sparsities[0], ".2g")]))
    return "\n".join(lines)


def _draw_panel(axes: "Axes", rows: pandas.DataFrame, settings: list[str]) -> None:
    """Draw a panel; filled: the pattern's own allocation; hollow: per_layer; dotted: a random mask, per_layer."""
    for one in rows.itertuples():
        color = pattern_color(one.setting.split()[0])
        face = color if one.is_default else "none"
        axes.scatter(one.relative, settings.index(one.setting), facecolors=face, edgecolors=color, s=12, zorder=3)
    best = rows[(rows.setting == "element_wise") & (rows.allocation == "per_layer")].iloc[0]
    axes.axvline((1 - best.sparsity_achieved) / best.retained, color=FRONT_COLOR, linewidth=1, linestyle=":")
    axes.axvline(1, color=FRONT_COLOR, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(settings)), settings, fontsize=6)
    axes.set_ylim(len(settings) - 0.5, -0.5)


def draw_mask(corner: Tensor, pattern: Pattern, path: Path) -> None:
    """Draw the mask in the network's order and, if the pattern permutes, in the pattern's order too."""
    mask = pattern.mask(corner, SPARSITY)
    permutation = pattern.find_permutation(corner, SPARSITY)
    permuted = (permutation or Permutation()).apply(mask)
    panels = {"": mask_image(permuted, pattern.boundaries(permuted, SPARSITY), SCALE)}
    if permutation is not None:
        panels = {"network's order": mask_image(mask, Boundaries(), SCALE), "pattern's order": panels[""]}
    write_panels(panels, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a BERT, as save_pretrained writes it: for docs/patterns")
    model = parser.parse_args().model
    rows = pandas.read_csv(HERE / "retention.csv")
    draw(rows, HERE / "retention.svg")
    print(markdown(rows))
    if model is not None:
        corner = read_importance(model.resolve())[LAYER][:SIDE, :SIDE].contiguous()
        PATTERNS.mkdir(parents=True, exist_ok=True)
        for name, overrides in PICTURES.items():
            pattern = build_settings("pattern", composed(*overrides.split()).pattern)
            draw_mask(corner, pattern, PATTERNS / f"{name}.png")


if __name__ == "__main__":
    main()
