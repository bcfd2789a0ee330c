"""Settings of the report stage."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from sparsefront.declared.settings_class import settings_class
from sparsefront.declared.types import Expression, OneOrMore
from sparsefront.packages import require_package
from sparsefront.report.axis import AXES, SPEEDUP
from sparsefront.report.layer_choice import choose_layers


@settings_class()
class Report:
    """What a run writes beside its `row.json`.

    Args:
        plot: `pareto.png`, the sparse and the dense point of this run.
        axis: of these plots: `speedup` over the dense baseline of the same process, or `latency_ms`.
        html: `report.html`, a page with the run's layers and kernels; it loads nothing.
        mask_pictures: `masks/`: the masks of some layers as images, the densities of all as bars; also in the page.
        mask_layers: regular expressions; a pruned layer whose name one of them finds is drawn. None: the first layer of
            each kind.
    """

    plot: bool = True
    axis: Literal[tuple(AXES)] = SPEEDUP.name
    html: bool = True
    mask_pictures: bool = False
    mask_layers: Annotated[
        OneOrMore[Expression] | None, Field(description="null: a few; mask_pictures=false: none")
    ] = None

    def check(self) -> None:
        """Require the packages of the report: its files are written last, after hours of training.

        Raises:
            InvalidSetting: plot or mask_pictures without matplotlib, html without matplotlib or jinja2.
        """
        needs = {"plot": ("matplotlib",), "mask_pictures": ("matplotlib",), "html": ("matplotlib", "jinja2")}
        for key, packages in needs.items():
            for package in packages if getattr(self, key) else ():
                require_package(package, key=key, value=True, instead=f"report.{key}=false")

    def check_layers(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Require that each expression finds a layer that this run prunes.

        Args:
            shapes: pruned layer -> [N, K].
        Raises:
            InvalidSetting: mask_layers, with the layers that there are.
        """
        choose_layers(shapes, self.mask_layers)
