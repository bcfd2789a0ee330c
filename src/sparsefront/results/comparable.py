"""Group results that may share a plot, and compute what each group draws.

A speedup or latency is only comparable with others of the same model, data, device, batch and dtype, evaluated on the same
samples, with the same recovery budget and an equally autotuned baseline, so results are grouped by these first. Dense runs
have no recovery and belong to every budget. Other differences are reported (`differences`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

import numpy as np

from sparsefront.progress import counted
from sparsefront.results.candidates import (
    BUDGET,
    Candidate,
    candidates_of,
    conditions,
    is_pruned,
    is_timed,
    mean_and_deviation,
    offers_no_choice,
    side_of,
    speedup_interval,
    two_baselines,
    uncommitted,
    why_not_picked,
)
from sparsefront.results.columns import Column, milliseconds, shown_columns, times
from sparsefront.results.compare_arguments import require_axis
from sparsefront.results.differences import differences
from sparsefront.results.metric import Metric
from sparsefront.results.record import Result

# The horizontal axis of accuracy plots.
#
# Speedup is the default: it is relative to the dense baseline of the same process, timed in turn. Milliseconds vary
# between processes by more than many speedups, so a point with 1.5x could appear slower than one with 1.2x.


@dataclass(frozen=True)
class Axis:
    """A value of a result as the horizontal axis of a plot.

    Args:
        name: as in the settings.
        field: of the result.
        label: of the axis.
        text: formats a value with its unit.
        unit: of areas under a front.
        larger_is_better: reverses the direction of a front.
    """

    name: str
    field: str
    label: str
    text: Callable[[float | None], str]
    unit: str
    larger_is_better: bool

    def value(self, result: Result) -> float | None:
        """The value; None if not measured."""
        return result.value_of(self.field)

    def interval(self, result: Result) -> tuple[float, float] | None:
        """The 95 % interval of a result's value; None for a latency, or with too few repeats."""
        return speedup_interval(result, self.field) if self.larger_is_better else None

    def dense_low(self, results: Sequence[Result]) -> float | None:
        """Like `dense`, for the low-precision dense network: its speedup over dense, or the median of its latencies."""
        ending = "_dataset" if self.field.endswith("_dataset") else ""
        field = f"latency_dense{{}}{ending}_ms"
        pairs = [(result.value_of(field.format("")), result.value_of(field.format("_low"))) for result in results]
        known = [(dense, low) for dense, low in pairs if dense is not None and low is not None]
        if not known:
            return None
        return median(dense / low if self.larger_is_better else low for dense, low in known)

    def dense(self, results: Sequence[Result]) -> float | None:
        """Position of the dense baseline: 1, or the median of its latencies; None if not timed."""
        latencies = [result.speed.latency_dense_ms for result in results if result.speed.latency_dense_ms is not None]
        if not latencies:
            return None
        return 1.0 if self.larger_is_better else median(latencies)

    def cost(self, value: float) -> float:
        """The value, signed so that less is better."""
        return -value if self.larger_is_better else value


SPEEDUP = Axis("speedup", "speedup", "speedup over dense in the same process", times, "×", True)
LATENCY = Axis(
    "latency_ms", "latency_sparse_ms", "latency of a batch, ms", lambda value: f"{milliseconds(value)} ms", "ms", False
)
AT_OWN_LENGTHS = "over the data set's own batches, each of its own length"
DATASET_SPEEDUP = Axis(
    "speedup_dataset", "speedup_dataset", f"speedup over dense in the same process, {AT_OWN_LENGTHS}", times, "×", True
)
AXES = {axis.name: axis for axis in (SPEEDUP, LATENCY, DATASET_SPEEDUP)}


def axis_named(name: str) -> Axis:
    """The axis for a setting `axis`.

    Raises:
        InvalidSetting: no axis has that name.
    """
    require_axis(name)
    return AXES[name]


# Pareto fronts and dominated areas (hypervolumes) in two dimensions.

CostAndQuality = tuple[float, float]  # (cost, quality): less cost is better, more quality is better


def pareto_front(points: Sequence[CostAndQuality]) -> list[int]:
    """Indices of the Pareto-optimal points, by ascending cost (and so by ascending quality).

    A point is dominated by one that costs no more, is no worse, and differs; of equal points the first is kept.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1], index))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def dominated_areas(costs: np.ndarray, qualities: np.ndarray, reference: CostAndQuality) -> np.ndarray:
    """Area between the front and a reference point that costs more and is worse (two-dimensional hypervolume).

    Points that are not better than the reference in both dimensions add nothing.

    Args:
        costs, qualities: [draws, points], float; each row is a separate set of points.
        reference: (cost, quality).
    Returns:
        [draws].
    """
    order = np.argsort(costs, axis=1, kind="stable")
    costs = np.minimum(np.take_along_axis(costs, order, axis=1), reference[0])
    best = np.maximum.accumulate(np.take_along_axis(qualities, order, axis=1), axis=1)
    ends = np.concatenate([costs[:, 1:], np.full((len(costs), 1), reference[0])], axis=1)
    return ((ends - costs) * np.maximum(best - reference[1], 0)).sum(1)


# Points of a plot: runs that differ only in their seeds become one point, with their spread.


@dataclass(frozen=True)
class Point:
    """One candidate in a plot: means over its runs; qualities as displayed (in percent, except perplexity), sparse if measured,
    else masked.

    `val` is the quality on the held-out part, by which points are picked; None if a run has none. `standard_error`, in the
    same unit, is due to the test set, for one network; `spread` is the standard deviation over runs, None for a single one.
    `x`, on the plot's axis, and `x_interval` are None if nothing was timed.
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
        """The first of its runs, which represents their choices."""
        return self.candidate.results[0]

    @property
    def error(self) -> float | None:
        """The larger of `standard_error` and `spread`."""
        return max((value for value in (self.standard_error, self.spread) if value is not None), default=None)


def point_of(candidate: Candidate, axis: Axis) -> Point:
    """The point of a candidate."""
    results = candidate.results
    quality, spread = mean_and_deviation(candidate.test)
    errors = [value for run in results if (value := run.value_of(f"{side_of(run)}_standard_error")) is not None]
    values = [value for run in results if (value := axis.value(run)) is not None]
    scale = candidate.metric.scale
    return Point(
        candidate,
        scale * quality,
        scale * fmean(errors) if errors else None,
        None if spread is None else scale * spread,
        fmean(map(_sparsity, results)),
        fmean(values) if values else None,
        _interval(results, axis),
        scale * fmean(candidate.val) if candidate.can_be_chosen else None,
    )


def by_pattern(points: Iterable[Point]) -> dict[str, list[Point]]:
    """The points grouped by `Choice.prunings`."""
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.result.choice.prunings, []).append(point)
    return series


def _interval(results: Sequence[Result], axis: Axis) -> tuple[float, float] | None:
    """The interval of a single run; for several, the hull of all."""
    intervals = [interval for result in results if (interval := axis.interval(result)) is not None]
    if not intervals:
        return None
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _sparsity(result: Result) -> float:
    achieved = result.sparsity.sparsity_achieved
    return result.sparsity.sparsity_target if achieved is None else achieved


LOG_FROM_RATIO = 8
CPU_NOTE = "CPU reference, not a GPU latency"


@dataclass(frozen=True, eq=False)
class ComparableResults:
    """Results with the same model, data set, device, batch and dtype, and equal `conditions`."""

    title: str
    device: str | None
    metric_name: str
    results: tuple[Result, ...]
    axis: Axis = SPEEDUP

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The results grouped by their choices, ignoring seeds."""
        return candidates_of(self.results)

    @cached_property
    def _points(self) -> list[Point]:
        return [point_of(candidate, self.axis) for candidate in self.candidates]

    @property
    def metric(self) -> Metric:
        return Metric(self.metric_name)

    def points(self) -> list[Point]:
        """All candidates whose quality was measured."""
        return self._points

    @cached_property
    def speedup_points(self) -> list[Point]:
        """Like `points`, by `speedup_axis` whatever the axis, restricted to timed ones."""
        axis = self.speedup_axis
        points = self._points if self.axis is axis else [point_of(one, axis) for one in self.candidates]
        return [point for point in points if point.x is not None]

    @property
    def speedup_axis(self) -> Axis:
        """The speedup for sentences and rankings: that of the axis, else at the fixed size."""
        return self.axis if self.axis.larger_is_better else SPEEDUP

    def timed_points(self) -> list[Point]:
        """The points with a value on the axis: only these are in a plot of accuracy against time."""
        return [point for point in self.points() if point.x is not None]

    def dense_point(self) -> tuple[float, float] | None:
        """(value on the axis, displayed quality) of the dense baselines: medians, since every run has its own."""
        baselines = [
            result for result in self.results if None not in (result.speed.latency_dense_ms, result.quality.dense)
        ]
        if not baselines:
            return None
        return self.axis.dense(baselines), self.metric.scale * median(result.quality.dense for result in baselines)

    def continued_point(self) -> tuple[float, float] | None:
        """Like `dense_point`, for the continued dense networks; None if there are none."""
        dense, quality = self.dense_point(), self.continued_quality()
        return None if dense is None or quality is None else (dense[0], quality)

    @cached_property
    def columns(self) -> tuple[list[Column], dict[str, str]]:
        """The columns of a table of these results, and the constants next to it: see `shown_columns`."""
        return shown_columns(self.results)

    def notes(self) -> list[str]:
        """How these results differ beyond what a plot shows, one line each."""
        return self._notes

    @cached_property
    def _notes(self) -> list[str]:
        drawn = [result for candidate in self.candidates for result in candidate.results]
        again = sum(map(is_pruned, self.results)) - len(drawn)
        repeated = (
            f"{counted(again, 'run')} {'was' if again == 1 else 'were'} repeated with the same seeds: "
            "the newest of each counts, of those with the control"
        )
        lines = [*differences(self.results), *([repeated] if again else [])]
        return [*lines, *uncommitted(self.results), *two_baselines(drawn), *why_not_picked(self.results)]

    def dense_quality(self) -> float | None:
        """Median displayed quality before pruning."""
        return self.median_quality("dense")

    def distilled_point(self) -> tuple[float, float] | None:
        """Like `continued_point`, for those trained with the recovery's teacher."""
        dense, quality = self.dense_point(), self.median_quality("dense_distilled")
        return None if dense is None or quality is None else (dense[0], quality)

    def low_point(self) -> tuple[float, float] | None:
        """Like `dense_point`, for the low-precision dense network; None if none was timed."""
        value, quality = self.axis.dense_low(self.results), self.median_quality("dense_low")
        return None if value is None or quality is None else (value, quality)

    @property
    def low_label(self) -> str:
        """`dense in fp8`."""
        precisions = dict.fromkeys(result.speed.dense_low_precision for result in self.results)
        return f"dense in {' or '.join(name for name in precisions if name)}"

    def continued_quality(self) -> float | None:
        """Median displayed quality of the continued dense networks."""
        return self.median_quality("dense_continued")

    def median_quality(self, side: str) -> float | None:
        """Median of one field of `quality`, as displayed; None if none was measured."""
        measured = [value for result in self.results if (value := result.value_of(side)) is not None]
        return self.metric.scale * median(measured) if measured else None

    def front(self) -> list[tuple[float, float]]:
        """(value on the axis, displayed quality) of the Pareto-optimal points, including the dense ones.

        If the held-out part was measured, it decides dominance, and the quality is still that of the reporting split. If
        nothing may be chosen, the front is empty. For older results the reporting split decides.
        """
        if self.offers_no_choice:
            return []
        known = self._front_candidates()
        chosen = pareto_front([(self.axis.cost(x), self.metric.sign * pick) for x, _, pick in known])
        return [known[index][:2] for index in chosen]

    def own_front(self, series: Iterable[Point]) -> list[Point]:
        """The Pareto-optimal ones of some timed points, picked as in `front`, by ascending cost."""
        if self.offers_no_choice:
            return []
        known = [point for point in series if point.x is not None and self.pick(point) is not None]
        return [known[index] for index in pareto_front([(self.axis.cost(one.x), self.merit(one)) for one in known])]

    def merit(self, point: Point) -> float:
        """`pick` of a point, signed so that more is better."""
        return self.metric.sign * self.pick(point)

    def pick(self, point: Point) -> float | None:
        """The displayed value for choices; None if this point cannot be chosen."""
        return point.quality if self.picked_by == "test" else point.val

    def _front_candidates(self) -> list[tuple[float, float, float]]:
        """(value on the axis, quality, value for choices)."""
        candidates = [(point.x, point.quality, point.val) for point in self.timed_points()]
        if (dense := self.dense_point()) is not None:
            candidates.append((*dense, self.median_quality("val_dense")))
        if (continued := self.continued_point()) is not None:
            candidates.append((*continued, self.median_quality("val_dense_continued")))
        if (distilled := self.distilled_point()) is not None:
            candidates.append((*distilled, self.median_quality("val_dense_distilled")))
        if (low := self.low_point()) is not None:
            candidates.append((*low, self.median_quality("val_dense_low")))
        by = 1 if self.picked_by == "test" else 2
        return [(*candidate[:2], candidate[by]) for candidate in candidates if candidate[by] is not None]

    @cached_property
    def picked_by(self) -> str:
        """`val`; `test` if all results are of an older version without held-out metrics."""
        return "test" if all(point.val is None for point in self.points()) else "val"

    @cached_property
    def offers_no_choice(self) -> bool:
        """Whether nothing here may be picked, because nothing was held out or the held-out part was seen."""
        return any(map(offers_no_choice, self.results))

    @property
    def front_label(self) -> str:
        return "Pareto front, picked on held-out data" if self.picked_by == "val" else "Pareto front"

    def wants_log_axis(self) -> bool:
        """Whether the values, including dense, span too much for a linear axis."""
        values = [point.x for point in self.timed_points()]
        values += [baseline[0] for baseline in (self.dense_point(), self.low_point()) if baseline is not None]
        return bool(values) and max(values) > LOG_FROM_RATIO * min(values)

    def wants_sparsity_plot(self) -> bool:
        """Whether quality against sparsity shows more than a single timed point."""
        points = self.points()
        return len({point.sparsity for point in points}) > 1 or len(points) > len(self.timed_points())

    @property
    def quality_label(self) -> str:
        return self.metric.label

    @property
    def axis_label(self) -> str:
        """Label of the horizontal axis; mentions timings on a CPU."""
        return self.axis.label + (f" ({CPU_NOTE})" if self.device == "cpu" else "")


def split_comparable(results: Iterable[Result], axis: Axis = SPEEDUP) -> list[ComparableResults]:
    """Group the results that may share a plot, largest group first, then by title; keeps the order within a group.

    If titles would be equal, they include the `conditions` that differ.
    """
    results, groups = list(results), {}
    for result in results:
        subject = _title(result), _device(result), result.quality.metric_name
        groups.setdefault((subject, tuple(conditions(result).items())), []).append(result)
    groups = _with_dense_ones(_with_untimed_ones(groups, results), results)
    alike: dict[tuple, list[dict[str, str]]] = {}
    for subject, condition_items in groups:
        alike.setdefault(subject, []).append(dict(condition_items))
    return [
        ComparableResults(
            _told_apart(subject[0], dict(condition_items), alike[subject]), *subject[1:], tuple(members), axis
        )
        for (subject, condition_items), members in sorted(groups.items(), key=_largest_first)
    ]


def _largest_first(group: tuple[tuple, list[Result]]) -> tuple[bool, int, str]:
    """Timed groups first."""
    key, members = group
    return not any(map(is_timed, members)), -len(members), str(key)


OF_TIMING = ("search", "image size", "timed", "processor")  # conditions of a latency alone


def _with_untimed_ones(groups: dict[tuple, list[Result]], order: list[Result]) -> dict[tuple, list[Result]]:
    """Add results without a latency to each timed group that agrees in all that an accuracy depends on."""

    def accuracy_key(members: list[Result]) -> tuple:
        first = members[0]
        parts = {name: text for name, text in conditions(first).items() if name not in OF_TIMING}
        return model_text(first), task_text(first), first.speed.dtype, first.quality.metric_name, *parts.items()

    place = {id(result): number for number, result in enumerate(order)}
    by_accuracy: dict[tuple, list[tuple]] = {}
    for key, members in groups.items():
        if members[0].speed.latency_device is not None:
            by_accuracy.setdefault(accuracy_key(members), []).append(key)
    merged_groups = {key: list(members) for key, members in groups.items()}
    for key, members in groups.items():
        if members[0].speed.latency_device is None and (timed := by_accuracy.get(accuracy_key(members))):
            for other in timed:
                merged_groups[other] = sorted([*merged_groups[other], *members], key=lambda result: place[id(result)])
            del merged_groups[key]
    return merged_groups


def _with_dense_ones(groups: dict[tuple, list[Result]], order: list[Result]) -> dict[tuple, list[Result]]:
    """Add the results without a budget to each group that agrees otherwise, or make a separate group if there is none."""
    place = {id(result): number for number, result in enumerate(order)}
    shared = {key: members for key, members in groups.items() if BUDGET not in dict(key[1])}
    merged_groups = {}
    for key, members in groups.items():
        if key in shared and any(other not in shared and _without_budget(other) == key for other in groups):
            continue
        beside = [] if key in shared else shared.get(_without_budget(key), [])
        merged_groups[key] = sorted([*members, *beside], key=lambda result: place[id(result)])
    return merged_groups


def _without_budget(key: tuple) -> tuple:
    return key[0], tuple(item for item in key[1] if item[0] != BUDGET)


def model_text(result: Result) -> str:
    """Model, with its variant if it has several: `bert base`."""
    return " ".join(filter(None, (result.choice.model, result.choice.model_variant)))


def task_text(result: Result) -> str:
    """Data set, with its task if it has several: `glue sst2`."""
    return " ".join(filter(None, (result.choice.dataset, result.choice.dataset_task)))


def _told_apart(title: str, found: dict[str, str], alike: list[dict[str, str]]) -> str:
    different = [text for name, text in found.items() if any(other.get(name) != text for other in alike)]
    return " · ".join([title, *different])


def _device(result: Result) -> str | None:
    if result.speed.latency_device == "cuda":
        return result.identity.gpu or "cuda"
    return result.speed.latency_device


def _title(result: Result) -> str:
    speed = result.speed
    length = None if speed.sequence_length is None else f"length {speed.sequence_length}"
    batch = None if speed.batch_size is None else f"batch {speed.batch_size}"
    parts = (f"{model_text(result)} on {task_text(result)}", _device(result) or "not timed", batch, length, speed.dtype)
    return " · ".join(filter(None, parts))
