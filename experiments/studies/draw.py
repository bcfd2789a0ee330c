"""The plot of a study: accuracy on test by sparsity, a panel for each network and table that has lines."""

from pathlib import Path

from cells import Cell, Cells  # beside this file
from definition import Study, Table

from sparsefront.report.series_style import DENSE_COLOR, MARKERS, pattern_color

PLOT = "accuracy.png"


def draw(study: Study, cells: Cells, path: Path) -> bool:
    """Write the plot; False, and no file, where nothing was measured.

    A color means one pattern; lines of one pattern differ in their marker.
    """
    panels = [
        (name, table, found)
        for name in study.networks
        for table in study.tables
        if (found := _series(table, name, cells))
    ]
    if not panels:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(panels), figsize=(9, 4 * len(panels)), squeeze=False, layout="constrained")
    for (name, table, found), ax in zip(panels, axes[:, 0]):
        for place, (row, measured) in enumerate(found.items()):
            x = [100 * float(cell.measured[0]["sparsity_achieved"]) for cell in measured]
            y = [cell.per_cent("masked") for cell in measured]
            errors = [100 * float(cell.measured[0]["masked_standard_error"] or 0) for cell in measured]
            color = pattern_color(measured[0].measured[0]["pattern"])
            style = {"marker": MARKERS[place % len(MARKERS)][0], "color": color, "linewidth": 1}
            ax.errorbar(x, y, errors, label=row, capsize=2, linestyle="-" if len(x) > 1 else "none", **style)
        cell = next(iter(found.values()))[0]
        ax.axhline(cell.per_cent("dense"), color=DENSE_COLOR, linewidth=1, label="dense")
        if (continued := cell.per_cent("dense_continued")) is not None:
            ax.axhline(continued, color=DENSE_COLOR, linewidth=1, linestyle=":", label="dense, trained on")
        ax.set(
            title=f"{table.title}: {name}", xlabel="sparsity, %", ylabel=f"{cell.measured[0]['metric_name']} on test, %"
        )
        ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return True


def _series(table: Table, network: str, cells: Cells) -> dict[str, list[Cell]]:
    """Line -> its measured cells, by sparsity."""
    found: dict[str, list[Cell]] = {}
    for point, cell in cells.items():
        if (point.table, point.network) == (table.title, network) and cell.seeds:
            found.setdefault(point.row, []).append(cell)
    for measured in found.values():
        measured.sort(key=lambda cell: float(cell.measured[0]["sparsity_achieved"]))
    return found
