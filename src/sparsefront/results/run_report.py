"""Files that a run writes for its reader, and their settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sparsefront.errors import InvalidSetting
from sparsefront.options import require_package
from sparsefront.results.candidates import budget_of
from sparsefront.results.comparable import AXES, SPEEDUP
from sparsefront.results.mask_pictures import PrunedLayers, choose_layers, write_mask_pictures
from sparsefront.results.page.run import write_run_page
from sparsefront.results.plots import layer_densities, write_density_png, write_pareto_png
from sparsefront.results.record import Result
from sparsefront.results.tables import run_title
from sparsefront.settings_class import Expression, OneOrMore, settings_class


@settings_class()
class Report:
    """What a run writes besides its `row.json`.

    Args:
        plot: `pareto.png`, with the sparse and the dense point of this run.
        axis: of these plots: `speedup` over the dense baseline of the same process, or `latency_ms`.
        html: `report.html`, a self-contained page with the run's layers and kernels.
        mask_pictures: `masks/`: images of some layers' masks, and a chart of all densities; also in the page.
        mask_layers: regular expressions; pruned layers whose name matches one are drawn. None: the first layer of each kind.
        plan: file of a study's plan, written before its first run; each result has its digest. None: the run is of no study.
    """

    plot: bool = True
    axis: Literal[tuple(AXES)] = SPEEDUP.name
    html: bool = True
    mask_pictures: bool = False
    mask_layers: Annotated[
        OneOrMore[Expression] | None, Field(description="null: a few; mask_pictures=false: none")
    ] = None
    plan: str | None = None

    def check(self) -> None:
        """Check early that the required packages are installed: the report is written last, after hours of training.

        Raises:
            InvalidSetting: plot or mask_pictures without matplotlib, html without matplotlib or jinja2; a plan that cannot be
                read.
        """
        if self.plan is not None and not Path(self.plan).is_file():
            raise InvalidSetting("plan", self.plan, "is no file: name the plan of the study, or null")
        needs = {"plot": ("matplotlib",), "mask_pictures": ("matplotlib",), "html": ("matplotlib", "jinja2")}
        for key, packages in needs.items():
            for package in packages if getattr(self, key) else ():
                require_package(package, key=key, value=True, instead=f"report.{key}=false")

    def check_layers(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Check that each expression matches a layer that this run prunes.

        Args:
            shapes: pruned layer -> [N, K].
        Raises:
            InvalidSetting: key mask_layers; lists the layers.
        """
        choose_layers(shapes, self.mask_layers)


PLOT_FILE, PAGE_FILE, MASKS_FOLDER, DENSITY_FILE = "pareto.png", "report.html", "masks", "density.png"


def write_report(result: Result, directory: Path, settings: Report, pruned: PrunedLayers | None = None) -> list[Path]:
    """Write the selected files to the run's folder.

    Args:
        pruned: the masks to draw; None if nothing was pruned, or the masks are gone.
    Returns:
        what was written; mask pictures as their folder.
    """
    written, pictures, axis, title = [], [], AXES[settings.axis], run_title(result)
    if settings.plot:
        written.append(write_pareto_png([result], directory / PLOT_FILE, axis))
    if settings.mask_pictures and pruned is not None:
        folder = directory / MASKS_FOLDER
        masks = write_mask_pictures(pruned, folder, settings.mask_layers)
        target = None if budget_of(result) else 1 - result.sparsity.sparsity_target
        density = write_density_png(layer_densities(result), folder / DENSITY_FILE, target=target, title=title)
        pictures = [density, *masks]
        written.append(folder)
    if settings.html:
        written.append(write_run_page(result, directory / PAGE_FILE, title=title, pictures=pictures, axis=axis))
    return written
