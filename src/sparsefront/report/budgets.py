"""One sentence per budget of quality: which candidate is the fastest that loses no more, and which patterns lose to dense."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from sparsefront.report.baseline import points_lost
from sparsefront.report.candidates import Candidate, asked_of
from sparsefront.report.column_kinds import lost_in_words, percent, times
from sparsefront.report.comparable import CPU_NOTE, ComparableResults
from sparsefront.report.points import Point
from sparsefront.report.speed_verdict import FASTER, MOSTLY_DENSE, SLOWER, UNCLEAR, against_dense

BUDGETS = (0.5, 1.0, 2.0, 5.0)  # percentage points lost against the dense network trained on, else against dense


def budget_sentences(group: ComparableResults, budgets: Sequence[float] = BUDGETS) -> list[str]:
    """One sentence for each budget, or for several that say the same; the held-out part decides who stays within it, the
    reporting split is told. Empty where nothing was timed, or nothing may be picked.
    """
    known = [
        (lost, against_dense(point), point)
        for point in group.speedup_points
        if (lost := lost_for_choice(point.candidate, group)) is not None
    ]
    said: dict[str, list[float]] = {}
    for budget in budgets if known else ():
        said.setdefault(_found(group, budget, known), []).append(budget)
    return [f"{_budgets_text(held)} {text}" for text, held in said.items()]


def lost_for_choice(candidate: Candidate, group: ComparableResults) -> float | None:
    """Mean of the points that its runs lost, by what choices go by; None where that decides nothing."""
    by_val = group.picked_by == "val"
    if group.offers_no_choice or (by_val and not candidate.can_be_chosen):
        return None
    lost = [points_lost(result, held_out=by_val) for result in candidate.results]
    return None if None in lost else round(fmean(lost), 9)  # 98 % - 97 % is 1.0000000000000009 points


def _budgets_text(budgets: Sequence[float]) -> str:
    """`at ≤ 0.5, 1 or 2 points lost`."""
    *first, last = (f"{budget:g}" for budget in budgets)
    numbers = f"{', '.join(first)} or {last}" if first else last
    return f"at ≤ {numbers} point{'' if numbers == '1' else 's'} lost"


def _found(group: ComparableResults, budget: float, known: Sequence[tuple[float, str, Point]]) -> str:
    within = [(verdict, point) for lost, verdict, point in known if lost <= budget]
    if not within:
        return f"nothing that was measured loses so little{', held out' if group.picked_by == 'val' else ''}"
    best: dict[str, tuple[str, Point]] = {}  # pattern -> its fastest that counts as faster than dense, else its fastest
    for verdict, point in sorted(within, key=lambda one: (one[0] == FASTER, one[1].x), reverse=True):
        best.setdefault(point.result.choice.pattern, (verdict, point))
    (verdict, first), *others = best.values()
    unclear = {point.result.choice.pattern for found, point in within if found == UNCLEAR}
    if verdict == FASTER:
        is_fastest = first.x == max(point.x for _, point in within)
        found = "the fastest is" if is_fastest else "the fastest that counts as faster than dense is"
    elif all(verdict == SLOWER for verdict, _ in within):
        found = "everything loses to dense; the fastest is"
    else:
        found = "nothing counts as faster than dense; the fastest is"
    beyond = dict.fromkeys(point.result.choice.pattern for *_, point in known)
    ends = (
        (
            [pattern for pattern in _patterns(others, SLOWER) if pattern not in unclear],
            "loses to dense",
            "lose to dense",
        ),
        (
            [pattern for pattern in _patterns(others, SLOWER, UNCLEAR) if pattern in unclear],
            "is not surely faster than dense",
            "are not surely faster than dense",
        ),
        (_patterns(best.values(), MOSTLY_DENSE), "runs mostly dense kernels", "run mostly dense kernels"),
        ([pattern for pattern in beyond if pattern not in best], "always loses more", "always lose more"),
    )
    rest = [f"{', '.join(names)} {one if len(names) == 1 else many}" for names, one, many in ends if names]
    cpu = f" ({CPU_NOTE})" if group.device == "cpu" else ""
    return "; ".join([f"{found} {_in_words(first)}{cpu}", *rest])


def _patterns(points: Iterable[tuple[str, Point]], *verdicts: str) -> list[str]:
    return [point.result.choice.pattern for found, point in points if found in verdicts]


def _in_words(point: Point) -> str:
    interval = "" if point.x_interval is None else f" ({' – '.join(map(times, point.x_interval))})"
    error, of = ("", "") if point.error is None else (f" ± {point.error:.2f}", f" ({point.error_of})")
    on_test = "".join(
        f", {lost_in_words(fmean(lost), unit)} {where}"
        for held_out, unit, where in ((False, " points", "on the reporting split"), (True, "", "held out"))
        if (lost := _lost(point.candidate, held_out=held_out))
    )
    quality = percent(point.quality / 100).removesuffix(" %")
    name = f"{point.candidate.pattern} {asked_of(point.result)}"
    recovery = f", {point.result.choice.recovery}" if point.result.choice.recovery else ""
    metric = point.result.quality.metric_name.replace("_", " ")
    return f"{name}{recovery}: {times(point.x)}{interval} over dense, {metric} {quality}{error} %{of}{on_test}"


def _lost(candidate: Candidate, *, held_out: bool) -> list[float]:
    """Points lost by each of its runs that can tell."""
    lost = (points_lost(result, held_out=held_out) for result in candidate.results)
    return [value for value in lost if value is not None]
