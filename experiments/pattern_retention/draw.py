"""retention.png from retention.csv: a dot per pattern and allocation, a panel per sparsity; prints the README's table."""

from pathlib import Path
from typing import TYPE_CHECKING

import pandas
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsefront.results.plots import FRONT_COLOR, pattern_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
NEAR = 0.02


def draw(table: pandas.DataFrame, path: Path) -> None:
    """Patterns from top to bottom by what they keep at the lowest sparsity under the allocation of their own."""
    measured = at_their_sparsity(table)
    own = measured[measured.is_default & (measured.sparsity == measured.sparsity.min())]
    last = [name for name in table.setting.unique() if name not in set(own.setting)]
    settings = [*own.sort_values("relative", ascending=False, kind="stable").setting, *last]
    sparsities = sorted(table.sparsity.unique())
    figure = Figure(figsize=(3.6 * len(sparsities) + 1.8, 0.22 * len(settings) + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, sparsity in zip(figure.subplots(1, len(sparsities), sharey=True), sparsities):
        _draw_panel(axes, measured[measured.sparsity == sparsity], settings)
        axes.set_title(f"sparsity {sparsity:g}", fontsize=10)
    figure.supxlabel(
        "retained importance (sum of |w|) relative to element_wise, same sparsity and allocation", fontsize=9
    )
    figure.legend(*_legend(), loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=120, format="png")


def at_their_sparsity(table: pandas.DataFrame) -> pandas.DataFrame:
    """Without refusals, and without rows of which most layers stayed dense: they say little at the sparsity asked for."""
    return table[(table.sparsity_achieved - table.sparsity).abs() <= NEAR]


def markdown(table: pandas.DataFrame) -> str:
    """Per setting, `relative` at each sparsity and the seconds at the lowest: own allocation | per_layer."""
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
        lines.append(
            f"| {setting} | {cells[0]} | {cells[1]} | {text(setting, allocation, 'seconds', sparsities[0], '.2g')} |"
        )
    return "\n".join(lines)


def _draw_panel(axes: "Axes", rows: pandas.DataFrame, settings: list[str]) -> None:
    """Filled: the pattern's own allocation; hollow: one sparsity in every layer."""
    for row in rows.itertuples():
        color = pattern_color(row.setting.split()[0])
        face = color if row.is_default else "none"
        axes.scatter(row.relative, settings.index(row.setting), facecolors=face, edgecolors=color, s=30, zorder=3)
    best = rows[(rows.setting == "element_wise") & (rows.allocation == "per_layer")].iloc[0]
    axes.axvline((1 - best.sparsity_achieved) / best.retained, color=FRONT_COLOR, linewidth=1, linestyle=":")
    axes.axvline(1, color=FRONT_COLOR, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(settings)), settings, fontsize=7)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.grid(alpha=0.25)


def _legend() -> tuple[list, list[str]]:
    def mark(face: str) -> Line2D:
        return Line2D([], [], linestyle="", marker="o", markerfacecolor=face, markeredgecolor="#333333")

    random = Line2D([], [], color=FRONT_COLOR, linestyle=":")
    texts = ["the pattern's own allocation", "per_layer, where that is not its own", "a random mask, per_layer"]
    return [mark("#333333"), mark("none"), random], texts


if __name__ == "__main__":
    rows = pandas.read_csv(HERE / "retention.csv")
    draw(rows, HERE / "retention.png")
    print(markdown(rows))
