"""Which rows may share a plot, and what each of them draws there.

A speedup or a latency means something only beside others of the same model, data, device, batch and dtype, judged on the
same samples and held against a baseline that was searched for alike: rows are split by these before anything is drawn.
What else differs is told (`differences`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sparsefront.report.axis import SPEEDUP, Axis
from sparsefront.report.conditions import conditions
from sparsefront.report.differences import differences
from sparsefront.report.pareto import pareto_front
from sparsefront.report.row import Row

# Always in this order, so that a pattern keeps its colour from plot to plot; patterns not named here follow by name.
FIRST_PATTERNS = ("tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense")
LOG_FROM_RATIO = 8
CPU_NOTE = "CPU reference, not a GPU latency"


@dataclass(frozen=True)
class Point:
    """One row in a plot: `quality` in percent, through the swapped kernels where measured, else masked.

    `standard_error`, in percentage points, is that of the test set; `x`, on the plot's axis, is None where nothing was timed.
    """

    row: Row
    quality: float
    standard_error: float | None
    sparsity: float
    x: float | None


@dataclass(frozen=True)
class ComparableRows:
    """Rows of one model, data set, device, batch and dtype, whose `conditions` agree."""

    title: str
    device: str | None
    metric_name: str
    rows: tuple[Row, ...]
    axis: Axis = SPEEDUP

    def points(self) -> list[Point]:
        """Every row whose sparse quality was measured."""
        return [point for row in self.rows if (point := _point(row, self.axis)) is not None]

    def timed_points(self) -> list[Point]:
        """The points that have a value on the axis too: only these stand in a plot of accuracy against time."""
        return [point for point in self.points() if point.x is not None]

    def dense_point(self) -> tuple[float, float] | None:
        """(value on the axis, quality in percent) of the dense baselines: the median, since every run has its own."""
        baselines = [row for row in self.rows if None not in (row.speed.latency_dense_ms, row.quality.dense)]
        if not baselines:
            return None
        return self.axis.dense(baselines), 100 * median(row.quality.dense for row in baselines)

    def notes(self) -> list[str]:
        """In what these rows differ beyond what a plot shows, one line each."""
        return differences(self.rows)

    def dense_quality(self) -> float | None:
        """Median quality before pruning, in percent."""
        measured = [row.quality.dense for row in self.rows if row.quality.dense is not None]
        return 100 * median(measured) if measured else None

    def front(self) -> list[tuple[float, float]]:
        """(value on the axis, quality in percent) that nothing here beats, the dense point among the candidates."""
        candidates = [(point.x, point.quality) for point in self.timed_points()]
        if (dense := self.dense_point()) is not None:
            candidates.append(dense)
        return [candidates[index] for index in pareto_front([(self.axis.cost(x), y) for x, y in candidates])]

    def wants_log_axis(self) -> bool:
        """Whether the values, dense included, span too much for a linear axis."""
        values = [point.x for point in self.timed_points()]
        if (dense := self.dense_point()) is not None:
            values.append(dense[0])
        return bool(values) and max(values) > LOG_FROM_RATIO * min(values)

    def wants_sparsity_plot(self) -> bool:
        """Whether quality against sparsity shows more than a single timed point would."""
        points = self.points()
        return len({point.sparsity for point in points}) > 1 or len(points) > len(self.timed_points())

    @property
    def quality_label(self) -> str:
        return f"{self.metric_name.replace('_', ' ')}, %"

    @property
    def axis_label(self) -> str:
        """The text of the horizontal axis; what was timed on a CPU says so."""
        return self.axis.label + (f" ({CPU_NOTE})" if self.device == "cpu" else "")


def split_comparable(rows: Iterable[Row], axis: Axis = SPEEDUP) -> list[ComparableRows]:
    """The rows in groups that may share a plot, by title; the order of rows inside a group is kept.

    Groups that would have the same title get the `conditions` in which they differ into it.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        subject = _title(row), _device(row), row.quality.metric_name
        groups.setdefault((subject, tuple(conditions(row).items())), []).append(row)
    alike: dict[tuple, list[dict[str, str]]] = {}
    for subject, found in groups:
        alike.setdefault(subject, []).append(dict(found))
    return [
        ComparableRows(_told_apart(subject[0], dict(found), alike[subject]), *subject[1:], tuple(members), axis)
        for (subject, found), members in sorted(groups.items(), key=lambda group: str(group[0]))
    ]


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


def _told_apart(title: str, found: dict[str, str], alike: list[dict[str, str]]) -> str:
    different = [text for name, text in found.items() if any(other.get(name) != text for other in alike)]
    return " · ".join([title, *different])


def _point(row: Row, axis: Axis) -> Point | None:
    side = "kernel" if row.quality.kernel is not None else "masked"
    quality, error = row.leaf(side), row.leaf(f"{side}_standard_error")
    if quality is None:
        return None
    achieved = row.sparsity.sparsity_achieved
    sparsity = row.sparsity.sparsity_target if achieved is None else achieved
    return Point(row, 100 * quality, None if error is None else 100 * error, sparsity, axis.value(row))


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
