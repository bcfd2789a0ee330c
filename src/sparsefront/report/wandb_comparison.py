"""A comparison as a run of W&B: its points, its fronts, all of its results, and the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparsefront.report.comparable import ComparableResults
from sparsefront.report.compare_request import Request
from sparsefront.report.loggers import COMPARE_JOB, WandbLogging
from sparsefront.report.points import Point
from sparsefront.report.result import Result

POINTS = (
    *("compared", "pattern", "recovery", "schedule", "allocation", "importance", "kernel_mode", "sparsity", "seeds"),
    *("val", "test", "spread", "axis", "x", "x_low", "x_high", "on_front", "run_ids"),
)
FRONTS = ("compared", "axis", "x", "test")


def wandb_of(request: Request) -> WandbLogging | None:
    """Where the comparison goes; None where it does not.

    Raises:
        InvalidSetting: wandb is not installed.
    """
    if request.log != "wandb":
        return None
    logging = WandbLogging(project=request.project or WandbLogging.project, entity=request.entity)
    logging.check()
    return logging


def log_comparison(
    groups: Sequence[ComparableResults],
    results: Sequence[Result],
    page: Path,
    *,
    logging: WandbLogging,
    sweep: str | None,
) -> str:
    """Log tables `points`, `fronts` and `runs`, a plot of the points and the page, as a run of job type "compare".

    Args:
        results: all that are compared.
        page: the comparison's file; W&B writes beside it.
        sweep: whose runs it is put beside: the run's group.
    Returns:
        where it is: an address, or the folder of a run that is kept offline.
    """
    import wandb

    config = {"compared": [group.title for group in groups], "runs": len(results)}
    run = logging.start_run(name="compare", dir=str(page.parent), group=sweep, job_type=COMPARE_JOB, config=config)
    try:
        points = wandb.Table(
            columns=list(POINTS), data=[line for group in groups for line in point_lines(group)], allow_mixed_types=True
        )
        flat = [result.flat() for result in results]
        columns = [name for name in flat[0] if any(line[name] is not None for line in flat)]
        run.log(
            {
                "points": points,
                "fronts": wandb.Table(
                    columns=list(FRONTS), data=[line for group in groups for line in front_lines(group)]
                ),
                "runs": wandb.Table(
                    columns=columns, data=[[line[name] for name in columns] for line in flat], allow_mixed_types=True
                ),
                "accuracy": wandb.plot.scatter(
                    points, x="x", y="test", title=f"{groups[0].axis.label} and accuracy, %"
                ),
                "page": wandb.Html(str(page)),
            }
        )
        return str(run.url or run.dir)
    finally:
        run.finish()


def point_lines(group: ComparableResults) -> Iterator[list[Any]]:
    """One line for each candidate, by `POINTS`: qualities in per cent, seeds as the number of runs."""
    front = set(group.front())
    for point in group.points():
        yield [
            group.title,
            *_choice(point),
            point.val,
            point.quality,
            point.spread,
            group.axis.name,
            *_place(point, front),
        ]


def front_lines(group: ComparableResults) -> Iterator[list[Any]]:
    """The points that nothing beats, the dense ones among them, by `FRONTS`."""
    for x, quality in sorted(group.front()):
        yield [group.title, group.axis.name, x, quality]


def _choice(point: Point) -> list[Any]:
    choice = point.result.choice
    parts = [choice.recovery, choice.schedule, choice.allocation, choice.importance, choice.kernel_mode]
    return [point.candidate.pattern, *parts, point.sparsity, len(point.candidate.results)]


def _place(point: Point, front: set[tuple[float, float]]) -> list[Any]:
    low, high = point.x_interval or (None, None)
    return [point.x, low, high, (point.x, point.quality) in front, " ".join(point.candidate.runs)]
