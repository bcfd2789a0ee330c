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

from sparsefront.measure.speedup import ratio_of_medians
from sparsefront.progress import counted
from sparsefront.results.candidates import (
    BUDGET,
    Candidate,
    Metric,
    candidates_of,
    conditions,
    is_pruned,
    is_timed,
    is_unpadded,
    list_uncommitted,
    mean_and_deviation,
    offers_no_choice,
    side_of,
    speedup_interval,
    two_baselines,
    value_text,
    why_not_picked,
)
from sparsefront.results.columns import Column, choose_columns, milliseconds, times
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


def compute_areas(costs: np.ndarray, qualities: np.ndarray, reference: CostAndQuality) -> np.ndarray:
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
    errors = [
        value for value in (run.value_of(f"{side_of(run)}_standard_error") for run in results) if value is not None
    ]
    values = [value for value in (axis.value(run) for run in results) if value is not None]
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
    intervals = [interval for interval in (axis.interval(result) for result in results) if interval is not None]
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
    def points(self) -> list[Point]:
        """All candidates whose quality was measured."""
        return [point_of(candidate, self.axis) for candidate in self.candidates]

    @property
    def timed_points(self) -> list[Point]:
        """The points with a value on the axis: only these are in a plot of accuracy against time."""
        return [point for point in self.points if point.x is not None]

    @property
    def speedup_axis(self) -> Axis:
        """The speedup for tables of budgets and rankings: that of the axis, else at the fixed size."""
        return self.axis if self.axis.larger_is_better else SPEEDUP

    @cached_property
    def speedup_points(self) -> list[Point]:
        """Like `timed_points`, by `speedup_axis` whatever the axis."""
        axis = self.speedup_axis
        points = self.points if self.axis is axis else [point_of(one, axis) for one in self.candidates]
        return [point for point in points if point.x is not None]

    @property
    def metric(self) -> Metric:
        return Metric(self.metric_name)

    def median_quality(self, side: str) -> float | None:
        """Median of one field of `quality`, as displayed; None if none was measured."""
        measured = [value for value in (result.value_of(side) for result in self.results) if value is not None]
        return self.metric.scale * median(measured) if measured else None

    def dense_point(self, side: str = "dense") -> tuple[float, float] | None:
        """(value on the axis, displayed quality) of the dense baselines, or of other dense networks: medians, since every run
        has its own; None if there are none.

        Args:
            side: `dense_continued` and `dense_distilled` are as fast as dense; `dense_low` is timed in low precision.
        """
        timed = [one for one in self.results if None not in (one.speed.latency_dense_ms, one.quality.dense)]
        x = self.axis.dense_low(self.results) if side == "dense_low" else self.axis.dense(timed)
        if x is None:
            return None
        if side == "dense":
            return x, self.metric.scale * median(result.quality.dense for result in timed)
        quality = self.median_quality(side)
        return None if quality is None else (x, quality)

    @cached_property
    def columns(self) -> tuple[list[Column], dict[str, str]]:
        """The columns of a table of these results, and the constants next to it: see `choose_columns`."""
        return choose_columns(self.results)

    @cached_property
    def notes(self) -> list[str]:
        """How these results differ beyond what a plot shows, one line each."""
        drawn = [result for candidate in self.candidates for result in candidate.results]
        again = sum(map(is_pruned, self.results)) - len(drawn)
        repeated = (
            f"{counted(again, 'run')} {'was' if again == 1 else 'were'} repeated with the same seeds: "
            "the newest of each counts, of those with the control"
        )
        lines = [*differences(self.results), *([repeated] if again else []), *_ratios_apart(self.results)]
        return [*lines, *list_uncommitted(self.results), *two_baselines(drawn), *why_not_picked(self.results)]

    @property
    def low_label(self) -> str:
        """`dense in fp8`."""
        precisions = dict.fromkeys(result.speed.dense_low_precision for result in self.results)
        return f"dense in {' or '.join(name for name in precisions if name)}"

    def front(self) -> list[tuple[float, float]]:
        """(value on the axis, displayed quality) of the Pareto-optimal points, including the dense ones.

        If the held-out part was measured, it decides dominance, and the quality is still that of the reporting split. If
        nothing may be chosen, the front is empty. For older results the reporting split decides.
        """
        if self.offers_no_choice:
            return []
        known = [(point.x, point.quality, self.pick(point)) for point in self.timed_points]
        for side in ("dense", "dense_continued", "dense_distilled", "dense_low"):
            dense = self.dense_point(side)
            if dense is not None:
                known.append((*dense, dense[1] if self.picked_by == "test" else self.median_quality(f"val_{side}")))
        known = [one for one in known if one[2] is not None]
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

    @cached_property
    def picked_by(self) -> str:
        """`val`; `test` if all results are of an older version without held-out metrics."""
        return "test" if all(point.val is None for point in self.points) else "val"

    @cached_property
    def offers_no_choice(self) -> bool:
        """Whether nothing here may be picked, because nothing was held out or the held-out part was seen."""
        return any(map(offers_no_choice, self.results))

    @property
    def front_label(self) -> str:
        return "Pareto front, picked on held-out data" if self.picked_by == "val" else "Pareto front"

    def wants_log_axis(self) -> bool:
        """Whether the values, including dense, span too much for a linear axis."""
        dense = (self.dense_point(), self.dense_point("dense_low"))
        values = [point.x for point in self.timed_points] + [one[0] for one in dense if one is not None]
        return bool(values) and max(values) > LOG_FROM_RATIO * min(values)

    def wants_sparsity_plot(self) -> bool:
        """Whether quality against sparsity shows more than a single timed point."""
        return len({point.sparsity for point in self.points}) > 1 or len(self.points) > len(self.timed_points)

    @property
    def axis_label(self) -> str:
        """Label of the horizontal axis; mentions timings on a CPU."""
        return self.axis.label + (f" ({CPU_NOTE})" if self.device == "cpu" else "")


_Key = tuple[tuple[str, str | None, str], tuple[tuple[str, str], ...]]  # (title, device, metric), conditions
_Groups = dict[_Key, list[Result]]


def split_comparable(results: Iterable[Result], axis: Axis = SPEEDUP) -> list[ComparableResults]:
    """Group the results that may share a plot, timed groups first, then the largest, then by title; keeps the order within a
    group.

    If titles would be equal, they include the `conditions` that differ.
    """
    results = list(results)
    groups: _Groups = {}
    for result in results:
        subject = _title(result), _device(result), result.quality.metric_name
        groups.setdefault((subject, tuple(conditions(result).items())), []).append(result)
    place = {id(result): number for number, result in enumerate(results)}
    groups = _with_dense_ones(_with_untimed_ones(groups))
    alike: dict[tuple, list[dict[str, str]]] = {}
    for subject, items in groups:
        alike.setdefault(subject, []).append(dict(items))

    def order(group: tuple[_Key, list[Result]]) -> tuple[bool, int, str]:
        key, members = group
        return not any(map(is_timed, members)), -len(members), str(key)

    comparable = []
    for (subject, items), members in sorted(groups.items(), key=order):
        apart = [text for name, text in items if any(other.get(name) != text for other in alike[subject])]
        title = " · ".join([subject[0], *apart])
        in_order = tuple(sorted(members, key=lambda result: place[id(result)]))
        comparable.append(ComparableResults(title, *subject[1:], in_order, axis))
    return comparable


OF_TIMING = ("search", "image size", "timed", "processor")  # conditions of a latency alone


def _with_untimed_ones(groups: _Groups) -> _Groups:
    """Add results without a latency to each timed group that agrees in all that an accuracy depends on."""

    def accuracy_key(key: _Key) -> tuple:
        first = groups[key][0]
        parts = [item for item in key[1] if item[0] not in OF_TIMING]
        return model_text(first), task_text(first), first.speed.dtype, first.quality.metric_name, *parts

    timed: dict[tuple, list[_Key]] = {}
    untimed: dict[tuple, list[_Key]] = {}
    for key, members in groups.items():
        (untimed if members[0].speed.latency_device is None else timed).setdefault(accuracy_key(key), []).append(key)
    added = {key: groups[key] for what, keys in untimed.items() if what in timed for key in keys}
    merged = {key: list(members) for key, members in groups.items() if key not in added}
    for key, members in added.items():
        for other in timed[accuracy_key(key)]:
            merged[other] += members
    return merged


def _with_dense_ones(groups: _Groups) -> _Groups:
    """Add the results without a budget to each group that agrees otherwise, or make a separate group if there is none."""

    def without_budget(key: _Key) -> _Key:
        return key[0], tuple(item for item in key[1] if item[0] != BUDGET)

    shared = {key for key in groups if without_budget(key) == key}
    taken = {without_budget(key) for key in groups if key not in shared}
    return {
        key: members if key in shared else [*members, *groups.get(without_budget(key), [])]
        for key, members in groups.items()
        if key not in taken
    }


def model_text(result: Result) -> str:
    """Model, with its variant if it has several: `bert base`."""
    return " ".join(filter(None, (result.choice.model, result.choice.model_variant)))


def task_text(result: Result) -> str:
    """Data set, with its task if it has several: `glue sst2`."""
    return " ".join(filter(None, (result.choice.dataset, result.choice.dataset_task)))


def _device(result: Result) -> str | None:
    return result.identity.gpu or "cuda" if result.speed.latency_device == "cuda" else result.speed.latency_device


def _title(result: Result) -> str:
    speed = result.speed
    length = None if speed.sequence_length is None else f"length {speed.sequence_length}"
    batch = None if speed.batch_size is None else f"batch {speed.batch_size}"
    subject = f"{model_text(result)} on {task_text(result)}"
    padding = "unpadded" if is_unpadded(result) else None
    parts = (subject, _device(result) or "not timed", batch, length, speed.dtype, padding)
    return " · ".join(filter(None, parts))


# Other differences, so that readers do not assume a single protocol.


FIELDS = {
    "repeats": "repeats",
    "samples_per_repeat": "samples per repeat",
    "warmup_rounds": "warm-up rounds",
    "autotune_seconds": "seconds of search",
    "recipe": "recipe",
    "commit": "commit",
    "torch_version": "torch",
    "triton_version": "triton",
    "driver": "driver",
    "cuda": "CUDA",
}
ONE_MACHINE = {"gpu": "GPU", "processor": "processor", "commit": "commit", "driver": "driver"}
PARTS = ("recipe", "trainer")  # their parameters are reported individually
BASELINE_SPREAD = 1.05  # slowest over fastest dense baseline above which milliseconds are misleading


def differences(results: Sequence[Result]) -> list[str]:
    """One line per kind of difference.

    Args:
        results: with equal `conditions`, or none recorded.
    """
    if len(results) < 2:
        return []
    values = {words: [result.value_of(field) for result in results] for field, words in FIELDS.items()}
    clauses = [
        *_where_they_differ(values | _parameters(results)),
        *_samples(results),
        *_weights(results),
        *_windows(results),
    ]
    lines = [f"differs between these runs: {'; '.join(clauses)}"] if clauses else []
    return [*_describe_mix(results), *lines, *_equal_under_several_seeds(results), *_baseline(results)]


def _equal_under_several_seeds(results: Sequence[Result]) -> list[str]:
    """A line if results with different seeds are equal: forged, or without randomness; their spread means nothing."""
    seeds: dict[str, set[tuple[int, int | None]]] = {}
    names: dict[str, str] = {}
    for result in results:
        identity = result.identity
        if identity.weights_sha256 is not None:
            seeds.setdefault(identity.weights_sha256, set()).add((identity.seed, identity.recovery_seed))
            names[identity.weights_sha256] = f"{result.choice.prunings} {result.sparsity.sparsity_target:g}"
    lines = []
    for weights, pairs in seeds.items():
        if len(pairs) > 1:
            pair_texts = (
                str(seed) if again in (None, seed) else f"{seed}/{again}" for seed, again in sorted(pairs, key=str)
            )
            runs = f"{names[weights]}: {', '.join(pair_texts)}"
            lines.append(f"equal weights under different seeds ({runs}): one network, not {len(pairs)}")
    return lines


def _describe_mix(results: Sequence[Result]) -> list[str]:
    """Number of machines and commits behind a figure of these results; empty if there is one of each."""
    counts = {words: len({run.value_of(field) for run in results} - {None}) for field, words in ONE_MACHINE.items()}
    several = [counted(count, words) for words, count in counts.items() if count > 1]
    return [f"mixes {' and '.join(several)}: no figure of one machine and commit"] if several else []


def _parameters(results: Sequence[Result]) -> dict[str, list]:
    """`part.key` -> its values, with null as `run.py` writes it, None if not recorded."""
    values = {}
    for part in PARTS:
        held = [result.value_of(f"{part}_parameters") for result in results]
        for key in dict.fromkeys(key for parameters in held for key in parameters):
            values[f"{part}.{key}"] = [
                "null" if parameters.get(key, key) is None else parameters.get(key)
                for result, parameters in zip(results, held)
                if key in parameters or is_pruned(result)  # dense results only record what their training used
            ]
    return values


def _where_they_differ(values: dict[str, list]) -> list[str]:
    """`name a, b` for each name with different values."""
    texts = {name: dict.fromkeys(map(value_text, variants)) for name, variants in values.items()}
    return [f"{name} {', '.join(variants)}" for name, variants in texts.items() if len(variants) > 1]


def _samples(results: Sequence[Result]) -> list[str]:
    """Samples of recoveries with the same number of steps."""
    counts = sorted({result.cost.recovery_samples for result in results} - {None})
    return [f"samples of recovery {', '.join(map(str, counts))}"] if len(counts) > 1 else []


def _weights(results: Sequence[Result]) -> list[str]:
    digests = {result.identity.dense_weights_sha256 for result in results}
    seeds = sorted({result.identity.seed for result in results})
    of_seeds = f" (seeds {', '.join(map(str, seeds))})" if len(seeds) > 1 else ""
    return [f"{len(digests)} different dense networks{of_seeds}"] if len(digests) > 1 else []


def _windows(results: Sequence[Result]) -> list[str]:
    """n:m windows, if a pattern has several at one sparsity."""
    windows: dict[tuple[str, float], dict[str, None]] = {}
    for result in results:
        if result.sparsity.n_of_m is not None:
            choice = result.choice.prunings, result.sparsity.sparsity_target
            windows.setdefault(choice, {})[result.sparsity.n_of_m] = None
    return [
        f"n:m of {pattern} at sparsity {sparsity:g} {' and '.join(several)}"
        for (pattern, sparsity), several in windows.items()
        if len(several) > 1
    ]


MOST_APART = 3  # rows that a note names


def _ratios_apart(results: Sequence[Result]) -> list[str]:
    """A line if latencies of some rows give another ratio than their speedup."""
    texts = []
    for result in results:
        speed = result.speed
        shown = ratio_of_medians(speed.speedup, speed.latency_dense_ms, speed.latency_sparse_ms)
        if shown is not None:
            texts.append(f"{times(shown)} for {result.choice.prunings} {result.sparsity.sparsity_target:g}")
    if not texts:
        return []
    more = f", and others for {counted(len(texts) - MOST_APART, 'row')}" if len(texts) > MOST_APART else ""
    rows = f"{', '.join(texts[:MOST_APART])}{more}"
    return [
        f"speedups are medians of the ratios of each repeat; the medians over all repeats that are shown give {rows}"
    ]


def _baseline(results: Sequence[Result]) -> list[str]:
    latencies = [result.speed.latency_dense_ms for result in results if result.speed.latency_dense_ms is not None]
    if not latencies or max(latencies) <= BASELINE_SPREAD * min(latencies):
        return []
    ends = f"{milliseconds(min(latencies))} to {milliseconds(max(latencies))} ms"
    return [f"the dense baseline took {ends} from process to process: compare speedups, not milliseconds"]
