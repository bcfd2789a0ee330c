"""Which results may share a plot, and what each of them draws there.

A speedup or a latency means something only beside others of the same model, data, device, batch and dtype, evaluated on the
same samples, recovered for as many steps and compared with a baseline from the same search: results are split by these before
anything is drawn. What was not pruned has no recovery, and stands beside every budget.
What else differs is reported (`differences`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from sparsefront.counted import counted
from sparsefront.report.axis import SPEEDUP, Axis
from sparsefront.report.baseline import two_baselines
from sparsefront.report.candidates import Candidate, candidates_of, is_pruned, offers_no_choice, why_not_picked
from sparsefront.report.column_kinds import Column
from sparsefront.report.columns import shown_columns
from sparsefront.report.conditions import BUDGET, conditions
from sparsefront.report.differences import differences
from sparsefront.report.pareto import pareto_front
from sparsefront.report.points import Point, point_of
from sparsefront.report.provenance import uncommitted
from sparsefront.report.result import Result

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
        """As `points`, by speedup whatever the axis, of those that were timed."""
        points = self._points if self.axis is SPEEDUP else [point_of(one, SPEEDUP) for one in self.candidates]
        return [point for point in points if point.x is not None]

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
