"""Settings of the report stage."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What a run writes beside its `row.json`.

    Args:
        plot: `pareto.png`, the sparse and the dense point of this run.
        html: `report.html`, a self-contained page with the run's layers and kernels.
    """

    plot: bool = True
    html: bool = True
