"""Which rows may share a plot, and what each of them draws there.

Absolute latencies mean something only beside others of the same model, data, device, batch and dtype, so rows are split
by these before anything is drawn.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sparsefront.report.pareto import pareto_front
from sparsefront.report.row import Row

# Always in this order, so that a pattern keeps its colour from plot to plot; patterns not named here follow by name.
FIRST_PATTERNS = ("tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense")
LOG_FROM_RATIO = 8
CPU_NOTE = "CPU reference, not a GPU latency"


@dataclass(frozen=True)
class Point:
    """One row in a plot: `quality` in percent, through the swapped kernels where measured, else masked."""

    row: Row
    quality: float
    sparsity: float
    latency_ms: float | None


@dataclass(frozen=True)
class ComparableRows:
    """Rows of one model, data set, device, batch and dtype."""

    title: str
    device: str | None
    metric_name: str
    rows: tuple[Row, ...]

    def points(self) -> list[Point]:
        """Every row whose sparse quality was measured."""
        return [point for row in self.rows if (point := _point(row)) is not None]

    def timed_points(self) -> list[Point]:
        """The points that have a latency too: only these stand in an accuracy-latency plot."""
        return [point for point in self.points() if point.latency_ms is not None]

    def dense_point(self) -> tuple[float, float] | None:
        """(latency in ms, quality in percent) of the dense twins: the median, since every run times its own."""
        twins = [(row.speed.latency_dense_ms, row.quality.dense) for row in self.rows]
        twins = [twin for twin in twins if None not in twin]
        if not twins:
            return None
        return median(latency for latency, _ in twins), 100 * median(quality for _, quality in twins)

    def dense_quality(self) -> float | None:
        """Median quality before pruning, in percent."""
        measured = [row.quality.dense for row in self.rows if row.quality.dense is not None]
        return 100 * median(measured) if measured else None

    def front(self) -> list[tuple[float, float]]:
        """(latency in ms, quality in percent) that nothing here beats, the dense point among the candidates."""
        candidates = [(point.latency_ms, point.quality) for point in self.timed_points()]
        if (dense := self.dense_point()) is not None:
            candidates.append(dense)
        return [candidates[index] for index in pareto_front(candidates)]

    def wants_log_latency(self) -> bool:
        """Whether the latencies, dense included, span too much for a linear axis."""
        latencies = [point.latency_ms for point in self.timed_points()]
        if (dense := self.dense_point()) is not None:
            latencies.append(dense[0])
        return bool(latencies) and max(latencies) > LOG_FROM_RATIO * min(latencies)

    def wants_sparsity_plot(self) -> bool:
        """Whether quality against sparsity shows more than a single timed point would."""
        points = self.points()
        return len({point.sparsity for point in points}) > 1 or len(points) > len(self.timed_points())

    @property
    def quality_label(self) -> str:
        return f"{self.metric_name.replace('_', ' ')}, %"

    @property
    def latency_label(self) -> str:
        """The text of the latency axis; a CPU latency says what it is."""
        return "latency of a batch, ms" + (f" ({CPU_NOTE})" if self.device == "cpu" else "")


def split_comparable(rows: Iterable[Row]) -> list[ComparableRows]:
    """The rows in groups that may share a plot, by title; the order of rows inside a group is kept."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((_title(row), _device(row), row.quality.metric_name), []).append(row)
    return [ComparableRows(*key, tuple(groups[key])) for key in sorted(groups, key=str)]


def by_pattern(points: Iterable[Point]) -> dict[str, list[Point]]:
    """The points as one series per pattern."""
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.row.choice.pattern, []).append(point)
    return series


def pattern_order(rows: Iterable[Row]) -> list[str]:
    """The patterns met in the rows; the position decides colour and marker."""
    met = {row.choice.pattern for row in rows}
    return [*FIRST_PATTERNS, *sorted(met - set(FIRST_PATTERNS))]


def model_text(row: Row) -> str:
    """Model, with its variant where it has several: `bert base`."""
    return " ".join(filter(None, (row.choice.model, row.choice.model_variant)))


def task_text(row: Row) -> str:
    """Data set, with its task where it has several: `glue sst2`."""
    return " ".join(filter(None, (row.choice.dataset, row.choice.dataset_task)))


def _point(row: Row) -> Point | None:
    quality = row.quality.kernel if row.quality.kernel is not None else row.quality.masked
    if quality is None:
        return None
    achieved = row.sparsity.sparsity_achieved
    sparsity = row.sparsity.sparsity_target if achieved is None else achieved
    return Point(row, 100 * quality, sparsity, row.speed.latency_sparse_ms)


def _device(row: Row) -> str | None:
    if row.speed.latency_device == "cuda":
        return row.identity.gpu or "cuda"
    return row.speed.latency_device


def _title(row: Row) -> str:
    speed = row.speed
    length = None if speed.sequence_length is None else f"length {speed.sequence_length}"
    batch = None if speed.batch_size is None else f"batch {speed.batch_size}"
    parts = (f"{model_text(row)} on {task_text(row)}", _device(row) or "not timed", batch, length, speed.dtype)
    return " · ".join(filter(None, parts))
