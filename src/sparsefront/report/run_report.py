"""What one run writes for its reader."""

from pathlib import Path

from sparsefront.report.axis import axis_named
from sparsefront.report.candidates import budget_of
from sparsefront.report.density_chart import layer_densities, write_density_png
from sparsefront.report.mask_pictures import PrunedLayers, write_mask_pictures
from sparsefront.report.page.run import write_run_page
from sparsefront.report.plots import write_pareto_png
from sparsefront.report.result import Result
from sparsefront.report.run_table import run_title
from sparsefront.report.settings import Report

PLOT_FILE, PAGE_FILE, MASKS_FOLDER, DENSITY_FILE = "pareto.png", "report.html", "masks", "density.png"


def write_report(
    result: Result,
    directory: Path,
    settings: Report,
    pruned: PrunedLayers | None = None,
) -> list[Path]:
    """Write what the settings ask for into the run's folder.

    Args:
        pruned: the masks to draw; None where nothing was pruned, or the masks are gone.
    Returns:
        what was written; the pictures of masks as their folder.
    """
    written, pictures = [], []
    axis = axis_named(settings.axis)
    if settings.plot:
        written.append(write_pareto_png([result], directory / PLOT_FILE, axis))
    if settings.mask_pictures and pruned is not None:
        pictures = _write_pictures(result, directory / MASKS_FOLDER, settings, pruned)
        written.append(directory / MASKS_FOLDER)
    if settings.html:
        page = directory / PAGE_FILE
        written.append(write_run_page(result, page, title=run_title(result), pictures=pictures, axis=axis))
    return written


def _write_pictures(result: Result, folder: Path, settings: Report, pruned: PrunedLayers) -> list[Path]:
    """The densities of all layers first, then the masks of the chosen ones."""
    masks = write_mask_pictures(pruned, folder, settings.mask_layers)
    target = None if budget_of(result) else 1 - result.sparsity.sparsity_target
    return [
        write_density_png(layer_densities(result), folder / DENSITY_FILE, target=target, title=run_title(result)),
        *masks,
    ]
