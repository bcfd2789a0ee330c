"""The points of the study: how each is run, and the line that it becomes."""

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsefront.results.record import Result

COMMIT_DIGITS, WEIGHTS_DIGITS = 7, 8
SEARCH, DENSE = "search", "dense"
OVERRIDES = "overrides"
PLACES = ("model.path", "dataset.path", "cache_dir", "results_dir")  # folders of a machine
STAGES = ("dense", "prune", "recover", "export")
QUIET = ("logger=none", "report.html=false", "report.plot=false", "trainer.progress_bar=false")
MEASURED = (
    "metric_name",
    "val_dense",
    "val_dense_continued",
    "val_sparse",
    "val_sparse_standard_error",
    "dense",
    "dense_continued",
    "masked",
    "sparse",
    "sparse_standard_error",
    "latency_dense_ms",
    "latency_sparse_ms",
    "latency_predicted_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "sparsity_achieved",
    "sparse_flops_share",
    "prune_seconds",
    "recover_seconds",
    "run_id",
    "outcomes_file",
    "gpu",
    "torch_version",
    "commit",
    "dense_weights_sha256",
    "time",
)


@dataclass(frozen=True)
class Point:
    """One line.

    Args:
        choice: "search", or a single pattern: its name, and after a colon its granularity; or "dense", which has no line.
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
        if self.choice == DENSE:
            return [f"seed={self.seed}", "pattern=dense", "stages=[dense]", *QUIET]
        shared = [f"seed={self.seed}", "control=dense_continued", *QUIET]
        if self.choice == SEARCH:
            search = ["pattern=mixed", "allocation=latency_search", f"allocation.speedup={self.level:g}"]
            return [*shared, *search, *_of_search(candidates, ceiling)]
        name, _, granularity = self.choice.partition(":")
        unit = [f"granularity={granularity}"] if granularity else []
        return [*shared, f"pattern={name}", *unit, f"sparsity={self.level:g}"]

    @property
    def cells(self) -> dict[str, str]:
        """What names its line."""
        return {"choice": self.choice, "level": f"{self.level:g}", "seed": str(self.seed)}


def finish(
    point: Point, *, candidates: Sequence[str], ceiling: float, overrides: Sequence[str], until: str | None = None
) -> dict[str, str] | str | None:
    """Run a point in this process, unless it is finished.

    Args:
        candidates, ceiling: of the search.
        overrides: of run.py, the same for all points.
        until: the last stage; None: all of them.
    Returns:
        its line; None where it ends before it is measured, as the dense network does; or the reason why there is no such network.
    Raises:
        Obstacle: a disk, a package or memory is in the way, so that nothing is known of the point.
    """
    from sparsefront.errors import InvalidSetting, Obstacle
    from sparsefront.runs import run

    last = (
        () if until is None or point.choice == DENSE else (f"stages=[{','.join(STAGES[: STAGES.index(until) + 1])}]",)
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # tables of each result
        try:
            # first those of the point: a user's own settle what both name
            record = run(*point.overrides(candidates, ceiling), *last, *overrides).record
        except Obstacle:
            raise
        except InvalidSetting as error:
            return " ".join(str(error).split())
    if record is None:
        return None
    return line_of(point, record, settings_of(point.choice, candidates, ceiling, overrides))


def line_of(point: Point, record: "Result", settings: str) -> dict[str, str]:
    """The line of a point, from the record of its run and the settings that it shares with others."""
    found = {name: record.value_of(name) for name in MEASURED}
    for name, digits in (("commit", COMMIT_DIGITS), ("dense_weights_sha256", WEIGHTS_DIGITS)):
        found[name] = (found[name] or "")[:digits]  # there is no commit outside a checkout
    return point.cells | {name: _text(value) for name, value in found.items()} | {OVERRIDES: settings}


def settings_of(choice: str, candidates: Sequence[str], ceiling: float, overrides: Sequence[str]) -> str:
    """What all points of a choice share, as a line has it: overrides in one order, without folders, which say nothing about a
    point; those of a search with its candidates, in one order too, and its ceiling.
    """
    shared = [text for text in overrides if text.partition("=")[0] not in PLACES]
    if choice == SEARCH:
        shared += _of_search(sorted(candidates), ceiling)
    return shlex.join(sorted(shared))


def _of_search(candidates: Sequence[str], ceiling: float) -> list[str]:
    return [f"pattern.candidates=[{','.join(candidates)}]", f"sparsity={ceiling:g}"]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def told(line: dict[str, str]) -> str:
    """What a line says, for the terminal."""
    named = ("val_sparse", "sparse", "dense_continued", "latency_sparse_ms", "speedup", "prune_seconds")
    return ", ".join(f"{name} {float(line[name]):.4g}" for name in named if line.get(name))


def unfinished(wanted: Sequence[Point], rows: Sequence[dict[str, str]]) -> list[Point]:
    """The points that have no line yet."""
    known = [{name: row[name] for name in ("choice", "level", "seed")} for row in rows]
    return [point for point in wanted if point.cells not in known]
