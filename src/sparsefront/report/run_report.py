"""What one run writes for its reader."""

from pathlib import Path

from sparsefront.artifacts.durable import whole_file
from sparsefront.report.axis import axis_named
from sparsefront.report.density_chart import layer_densities, write_density_png
from sparsefront.report.html import write_html
from sparsefront.report.mask_pictures import PrunedLayers, write_mask_pictures
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
    *,
    results: Path | None = None,
) -> list[Path]:
    """Write what the settings ask for into the run's folder.

    Args:
        pruned: the masks to draw; None where nothing was pruned, or the masks are gone.
        results: the folder of all results, where pages share one copy of plotly's script; None: the run's own folder.
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
        script = shared_script(script_folder(directory, results or directory))
        page = write_html(
            [result], directory / PAGE_FILE, title=run_title(result), pictures=pictures, axis=axis, script=script
        )
        written.append(page)
    return written


def _write_pictures(result: Result, folder: Path, settings: Report, pruned: PrunedLayers) -> list[Path]:
    """The densities of all layers first, then the masks of the chosen ones."""
    masks = write_mask_pictures(pruned, folder, settings.mask_layers)
    target = 1 - result.sparsity.sparsity_target
    return [
        write_density_png(layer_densities(result), folder / DENSITY_FILE, target=target, title=run_title(result)),
        *masks,
    ]


def shared_script(folder: Path) -> Path:
    """The script in a folder, written there unless it is; pages below link to it, and open without a network.

    Its name holds its version, so that a page keeps the script that it was made for.
    """
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    script, content = folder / f"plotly-{get_plotlyjs_version()}.min.js", get_plotlyjs().encode()
    if not script.exists() or script.stat().st_size != len(content):
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(script) as new:
            new.write_bytes(content)
    return script


def script_folder(directory: Path, results: Path) -> Path:
    """Where the script of a run's page belongs: among the results that the run's folder lies in, else in that folder."""
    return results if directory.resolve().is_relative_to(results.resolve()) else directory
