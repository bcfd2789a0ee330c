"""What a plot draws: runs that share all but the seed become one point, with their spread."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sparsefront.report.axis import Axis
from sparsefront.report.candidates import Candidate, mean_and_deviation, side_of
from sparsefront.report.result import Result


@dataclass(frozen=True)
class Point:
    """One candidate in a plot: means over its runs; qualities in percent, with the sparse kernels running where measured, else
    masked.

    `val` is the quality on the held-out part of train, by which points are picked; None where a run has none.
    `standard_error`, in percentage points, is that of the test set, of one network; `spread` the standard deviation over
    runs, None of a single one. `x`, on the plot's axis, and `x_interval` are None where nothing was timed.
    """

    candidate: Candidate
    quality: float
    standard_error: float | None
    spread: float | None
    sparsity: float
    x: float | None
    x_interval: tuple[float, float] | None
    val: float | None = None

    @property
    def result(self) -> Result:
        """The first of its runs, which stands for what all of them chose."""
        return self.candidate.results[0]

    @property
    def error(self) -> float | None:
        """The larger of the two ways in which its quality is unsure."""
        return max((value for value in (self.standard_error, self.spread) if value is not None), default=None)

    @property
    def error_of(self) -> str:
        """Which of the two `error` is."""
        by_seeds = self.spread is not None and self.error == self.spread
        return f"deviation over {len(self.candidate.results)} runs" if by_seeds else "standard error of the test set"


def point_of(candidate: Candidate, axis: Axis) -> Point:
    """The point that a candidate draws."""
    results = candidate.results
    quality, spread = mean_and_deviation(candidate.test)
    errors = [value for run in results if (value := run.value_of(f"{side_of(run)}_standard_error")) is not None]
    values = [value for run in results if (value := axis.value(run)) is not None]
    return Point(
        candidate,
        100 * quality,
        100 * fmean(errors) if errors else None,
        None if spread is None else 100 * spread,
        fmean(map(_sparsity, results)),
        fmean(values) if values else None,
        _interval(results, axis),
        100 * fmean(candidate.val) if candidate.can_be_chosen else None,
    )


def by_pattern(points: Iterable[Point]) -> dict[str, list[Point]]:
    """The points as one series per pattern."""
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.result.choice.pattern, []).append(point)
    return series


def _interval(results: Sequence[Result], axis: Axis) -> tuple[float, float] | None:
    """That of the one run; of several the ends of all."""
    intervals = [interval for result in results if (interval := axis.interval(result)) is not None]
    if not intervals:
        return None
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _sparsity(result: Result) -> float:
    achieved = result.sparsity.sparsity_achieved
    return result.sparsity.sparsity_target if achieved is None else achieved
