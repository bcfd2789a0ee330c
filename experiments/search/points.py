"""The points of the study: how each is run, and the line that it becomes."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsefront.report.result import Result

SEARCH = "search"
MEASURED = (
    "metric_name",
    "dense",
    "dense_continued",
    "masked",
    "sparse",
    "val_sparse",
    "latency_dense_ms",
    "latency_sparse_ms",
    "latency_predicted_ms",
    "speedup",
    "sparsity_achieved",
    "sparse_flops_share",
    "prune_seconds",
    "recover_seconds",
    "run_id",
    "outcomes_file",
    "gpu",
    "torch_version",
    "commit",
    "time",
)


@dataclass(frozen=True)
class Point:
    """One line.

    Args:
        choice: "search", or a single pattern: its name, and after a colon its granularity.
        level: speedup that is searched for, or sparsity of the single pattern.
        seed: of the dense network and all that follows.
    """

    choice: str
    level: float
    seed: int

    def overrides(self, candidates: Sequence[str], ceiling: float) -> list[str]:
        """What `run.py` takes.

        Args:
            candidates, ceiling: of the search: its patterns, and the highest sparsity of a layer.
        """
        shared = [f"seed={self.seed}", "control=dense_continued"]
        if self.choice == SEARCH:
            listed = f"pattern.candidates=[{','.join(candidates)}]"
            search = ["pattern=mixed", listed, "allocation=latency_search", f"allocation.speedup={self.level:g}"]
            return [*shared, *search, f"sparsity={ceiling:g}"]
        name, _, granularity = self.choice.partition(":")
        unit = [f"granularity={granularity}"] if granularity else []
        return [*shared, f"pattern={name}", *unit, f"sparsity={self.level:g}"]

    @property
    def cells(self) -> dict[str, str]:
        """What names its line."""
        return {"choice": self.choice, "level": f"{self.level:g}", "seed": str(self.seed)}


def line(point: Point, result: Result) -> dict[str, str]:
    """The line of a finished point; a cell is empty where nothing was measured."""
    cells = {name: result.value_of(name) for name in MEASURED}
    return point.cells | {name: "" if value is None else str(value) for name, value in cells.items()}


def unfinished(wanted: Sequence[Point], rows: Sequence[dict[str, str]]) -> list[Point]:
    """The points that have no line yet."""
    known = [{name: row[name] for name in ("choice", "level", "seed")} for row in rows]
    return [point for point in wanted if point.cells not in known]
