"""Which results may share a plot, and what each of them draws there.

A speedup or a latency means something only beside others of the same model, data, device, batch and dtype, evaluated on the
same samples, recovered for as many steps and compared with a baseline from the same search: results are split by these before
anything is drawn. What was not pruned has no recovery, and stands beside every budget.
What else differs is reported (`differences`).
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
from sparsefront.results.record import Result

# What accuracy is drawn against.
#
# Speedup is the default: each is against the dense baseline of its own process, timed in turn with it. Milliseconds
# of different processes differ by more than many speedups do, and a point of 1.5x may come out slower than one of
# 1.2x.


@dataclass(frozen=True)
class Axis:
    """A value of a result, as the horizontal axis of a plot.

    Args:
        name: as the settings call it.
        field: of the result.
        label: of the axis.
        text: a value in words, with its unit.
        unit: of areas under a front.
        larger_is_better: a front runs the other way then.
    """

    name: str
    field: str
    label: str
    text: Callable[[float | None], str]
    unit: str
    larger_is_better: bool

    def value(self, result: Result) -> float | None:
        """None where it was not measured."""
        return result.value_of(self.field)

    def interval(self, result: Result) -> tuple[float, float] | None:
        """The 95 % interval of a result's value; None where there is none, as of a latency, or of too few repeats."""
        return speedup_interval(result, self.field) if self.larger_is_better else None

    def dense_low(self, results: Sequence[Result]) -> float | None:
        """As `dense`, of the dense network in low precision: how much faster than dense, or the median of its latencies."""
        ending = "_dataset" if self.field.endswith("_dataset") else ""
        field = f"latency_dense{{}}{ending}_ms"
        pairs = [(result.value_of(field.format("")), result.value_of(field.format("_low"))) for result in results]
        known = [(dense, low) for dense, low in pairs if dense is not None and low is not None]
        if not known:
            return None
        return median(dense / low if self.larger_is_better else low for dense, low in known)

    def dense(self, results: Sequence[Result]) -> float | None:
        """Where the dense baseline of these results lies: at 1, or at the median of its latencies; None where not timed."""
        latencies = [result.speed.latency_dense_ms for result in results if result.speed.latency_dense_ms is not None]
        if not latencies:
            return None
        return 1.0 if self.larger_is_better else median(latencies)

    def cost(self, value: float) -> float:
        """The value so that less is better."""
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
    """The axis that a setting `axis` means.

    Raises:
        InvalidSetting: there is none of that name.
    """
    require_axis(name)
    return AXES[name]


# The trade-off in two dimensions: which points no other point beats, and the area that they dominate.

CostAndQuality = tuple[float, float]  # (cost, quality): less cost is better, more quality is better


def pareto_front(points: Sequence[CostAndQuality]) -> list[int]:
    """Indices of the points that no other point beats, by rising cost (and so by rising quality).

    A point is beaten by one that costs no more and is no worse, and differs; of equal points the first stands for all.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1], index))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def dominated_areas(costs: np.ndarray, qualities: np.ndarray, reference: CostAndQuality) -> np.ndarray:
    """Area between the front and a reference point that costs more and is worse (the two-dimensional hypervolume).

    Points that are not better than the reference in both directions add nothing.

    Args:
        costs, qualities: [draws, points], float; each line is a set of points of its own.
        reference: (cost, quality).
    Returns:
        [draws].
    """
    order = np.argsort(costs, axis=1, kind="stable")
    costs = np.minimum(np.take_along_axis(costs, order, axis=1), reference[0])
    best = np.maximum.accumulate(np.take_along_axis(qualities, order, axis=1), axis=1)
    ends = np.concatenate([costs[:, 1:], np.full((len(costs), 1), reference[0])], axis=1)
    return ((ends - costs) * np.maximum(best - reference[1], 0)).sum(1)


# What a plot draws: runs that share all but the seed become one point, with their spread.


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


LOG_FROM_RATIO = 8
CPU_NOTE = "CPU reference, not a GPU latency"


@dataclass(frozen=True, eq=False)
class ComparableResults:
    """Results of one model, data set, device, batch and dtype, whose `conditions` agree."""

    title: str
    device: str | None
    metric_name: str
    results: tuple[Result, ...]
    axis: Axis = SPEEDUP

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The results by what was chosen: those that share all but the seed are one."""
        return candidates_of(self.results)

    @cached_property
    def _points(self) -> list[Point]:
        return [point_of(candidate, self.axis) for candidate in self.candidates]

    def points(self) -> list[Point]:
        """Every candidate; a result whose sparse quality was not measured is none."""
        return self._points

    @cached_property
    def speedup_points(self) -> list[Point]:
        """As `points`, by speedup whatever the axis (`speedup_axis`), of those that were timed."""
        axis = self.speedup_axis
        points = self._points if self.axis is axis else [point_of(one, axis) for one in self.candidates]
        return [point for point in points if point.x is not None]

    @property
    def speedup_axis(self) -> Axis:
        """Which speedup sentences and rankings are of: that of the axis, else at the fixed size."""
        return self.axis if self.axis.larger_is_better else SPEEDUP

    def timed_points(self) -> list[Point]:
        """The points that have a value on the axis too: only these stand in a plot of accuracy against time."""
        return [point for point in self.points() if point.x is not None]

    def dense_point(self) -> tuple[float, float] | None:
        """(value on the axis, quality in percent) of the dense baselines: the median, since every run has its own."""
        baselines = [
            result for result in self.results if None not in (result.speed.latency_dense_ms, result.quality.dense)
        ]
        if not baselines:
            return None
        return self.axis.dense(baselines), 100 * median(result.quality.dense for result in baselines)

    def continued_point(self) -> tuple[float, float] | None:
        """As `dense_point`, of the dense networks that were trained on; None where there are none."""
        dense, quality = self.dense_point(), self.continued_quality()
        return None if dense is None or quality is None else (dense[0], quality)

    @cached_property
    def columns(self) -> tuple[list[Column], dict[str, str]]:
        """What a table of these results shows, and what stands beside it: see `shown_columns`."""
        return shown_columns(self.results)

    def notes(self) -> list[str]:
        """In what these results differ beyond what a plot shows, one line each."""
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
        """Median quality before pruning, in percent."""
        return self.median_quality("dense")

    def distilled_point(self) -> tuple[float, float] | None:
        """As `continued_point`, of those that were trained on with the recovery's teacher."""
        dense, quality = self.dense_point(), self.median_quality("dense_distilled")
        return None if dense is None or quality is None else (dense[0], quality)

    def low_point(self) -> tuple[float, float] | None:
        """As `dense_point`, of the dense network in low precision; None where none was timed."""
        value, quality = self.axis.dense_low(self.results), self.median_quality("dense_low")
        return None if value is None or quality is None else (value, quality)

    @property
    def low_label(self) -> str:
        """`dense in fp8`."""
        found = dict.fromkeys(result.speed.dense_low_precision for result in self.results)
        return f"dense in {' or '.join(name for name in found if name)}"

    def continued_quality(self) -> float | None:
        """Median quality of the dense networks that were trained on for the recovery's budget, in percent."""
        return self.median_quality("dense_continued")

    def median_quality(self, side: str) -> float | None:
        """Of one field of `quality` over these results, in percent; None where none was measured."""
        measured = [value for result in self.results if (value := result.value_of(side)) is not None]
        return 100 * median(measured) if measured else None

    def front(self) -> list[tuple[float, float]]:
        """(value on the axis, quality in percent) of the points that nothing here beats, the dense ones among them.

        Where the held-out part was measured it decides what beats what, and the quality is still that of the reporting
        split. Where nothing may be chosen nothing is picked. Of older results the reporting split decides.
        """
        if self.offers_no_choice:
            return []
        known = self._front_candidates()
        chosen = pareto_front([(self.axis.cost(x), pick) for x, _, pick in known])
        return [known[index][:2] for index in chosen]

    def own_front(self, series: Iterable[Point]) -> list[Point]:
        """Those of some timed points that no other of them beats, picked as in `front`, by rising cost."""
        if self.offers_no_choice:
            return []
        known = [point for point in series if point.x is not None and self.pick(point) is not None]
        return [known[index] for index in pareto_front([(self.axis.cost(one.x), self.pick(one)) for one in known])]

    def pick(self, point: Point) -> float | None:
        """What a choice goes by, in percent; None where this point is no candidate."""
        return point.quality if self.picked_by == "test" else point.val

    def _front_candidates(self) -> list[tuple[float, float, float]]:
        """(value on the axis, quality, what a choice goes by)."""
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
        """`val`; `test` where no result here, being of an older version, holds a metric of the held-out part."""
        return "test" if all(point.val is None for point in self.points()) else "val"

    @cached_property
    def offers_no_choice(self) -> bool:
        """Whether nothing here may be picked, since nothing was held out or the held-out part was seen."""
        return any(map(offers_no_choice, self.results))

    @property
    def front_label(self) -> str:
        return "Pareto front, picked on held-out data" if self.picked_by == "val" else "Pareto front"

    def wants_log_axis(self) -> bool:
        """Whether the values, dense included, span too much for a linear axis."""
        values = [point.x for point in self.timed_points()]
        values += [baseline[0] for baseline in (self.dense_point(), self.low_point()) if baseline is not None]
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


def split_comparable(results: Iterable[Result], axis: Axis = SPEEDUP) -> list[ComparableResults]:
    """The results in groups that may share a plot, the largest first, then by title; the order of results inside a group is kept.

    Groups that would have the same title get the `conditions` in which they differ into it.
    """
    results, groups = list(results), {}
    for result in results:
        subject = _title(result), _device(result), result.quality.metric_name
        groups.setdefault((subject, tuple(conditions(result).items())), []).append(result)
    groups = _with_dense_ones(groups, results)
    alike: dict[tuple, list[dict[str, str]]] = {}
    for subject, found in groups:
        alike.setdefault(subject, []).append(dict(found))
    return [
        ComparableResults(_told_apart(subject[0], dict(found), alike[subject]), *subject[1:], tuple(members), axis)
        for (subject, found), members in sorted(groups.items(), key=_largest_first)
    ]


def _largest_first(group: tuple[tuple, list[Result]]) -> tuple[int, str]:
    key, members = group
    return -len(members), str(key)


def _with_dense_ones(groups: dict[tuple, list[Result]], order: list[Result]) -> dict[tuple, list[Result]]:
    """The groups, those without a budget put into each that agrees in all else; alone where there is none."""
    place = {id(result): number for number, result in enumerate(order)}
    shared = {key: members for key, members in groups.items() if BUDGET not in dict(key[1])}
    found = {}
    for key, members in groups.items():
        if key in shared and any(other not in shared and _without_budget(other) == key for other in groups):
            continue
        beside = [] if key in shared else shared.get(_without_budget(key), [])
        found[key] = sorted([*members, *beside], key=lambda result: place[id(result)])
    return found


def _without_budget(key: tuple) -> tuple:
    return key[0], tuple(item for item in key[1] if item[0] != BUDGET)


def model_text(result: Result) -> str:
    """Model, with its variant where it has several: `bert base`."""
    return " ".join(filter(None, (result.choice.model, result.choice.model_variant)))


def task_text(result: Result) -> str:
    """Data set, with its task where it has several: `glue sst2`."""
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
