"""Patterns ranked by the area under their fronts, with how sure the order is."""

from collections.abc import Sequence
from math import log

import numpy as np

from sparsefront.report.axis import SPEEDUP
from sparsefront.report.budgets import lost_for_choice
from sparsefront.report.candidates import side_of
from sparsefront.report.column_kinds import times
from sparsefront.report.comparable import ComparableResults
from sparsefront.report.pareto import dominated_areas
from sparsefront.report.points import Point, by_pattern
from sparsefront.report.speed_verdict import FASTER, SLOWER, against_dense

NEAR_DENSE_POINTS = 1.0  # percentage points below dense that still count as "the same quality"
DRAWS = 1000
QUANTILES = (0.025, 0.975)
SIGMAS_OF_INTERVAL = 2 * 1.96  # from end to end of a 95 % interval of something normal


def pattern_ranking(group: ComparableResults) -> list[dict[str, str]]:
    """Per pattern, the largest dominated area first: its candidates, its best speedup near the dense quality, the area that the
    points of its own front dominate (the two-dimensional hypervolume) with its interval, and wins, ties and losses.

    The front is picked by the held-out part, the area is that of the reporting split. It ends at the dense baseline and at one
    point below the worst quality here, the same corner for all patterns. Empty where only dense networks were measured.
    """
    series = by_pattern(group.points())
    if not series:
        return []
    dense, front = group.dense_point(), set(group.front())
    areas = {} if dense is None else _areas(group, series, dense[0])
    timed = by_pattern(group.speedup_points)
    order = sorted(series, key=lambda pattern: -areas[pattern][0] if pattern in areas else 1.0)
    near = f"best speedup at ≤ {NEAR_DENSE_POINTS:g} point lost{', held out' if group.picked_by == 'val' else ''}"
    ranking = []
    for pattern in order:
        drawn = areas.get(pattern)
        ranking.append(
            {
                "pattern": pattern,
                "points": str(len(series[pattern])),
                "on the front": str(sum((point.x, point.quality) in front for point in series[pattern])),
                near: times(_best_near(group, timed.get(pattern, []))),
                f"dominated area, {group.axis.unit} · points (95 %)": "–" if drawn is None else _area_text(drawn),
                "wins / ties / losses among patterns": "–" if drawn is None else _duels(pattern, areas),
                "points faster / unclear / slower than dense": _against_dense(timed.get(pattern, [])),
            }
        )
    return ranking


def _areas(group: ComparableResults, series: dict[str, list[Point]], dense: float) -> dict[str, np.ndarray]:
    """Pattern -> [1 + DRAWS]: its dominated area as measured, then of each draw. Only of those with a point on their own front.

    A draw takes of each point's runs as many as there are, with replacement, and moves each quality by its standard error and
    each speed within its interval. Points are drawn independently, though they share a test set: intervals err to the wide side.
    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 6. The generator's seed is fixed.
    """
    corner = group.axis.cost(dense), min(point.quality for point in group.points()) - 1
    draw = np.random.default_rng(0)
    areas = {}
    for pattern, points in series.items():
        if own := group.own_front(points):
            drawn = [_draws(point, group, draw) for point in own]
            costs, qualities = (np.stack(side, axis=1) for side in zip(*drawn))
            areas[pattern] = dominated_areas(group.axis.cost(costs), qualities, corner)
    return areas


def _draws(point: Point, group: ComparableResults, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """([1 + DRAWS] on the axis, the same of the quality): the means of the runs, then of each draw."""
    runs = [run for run in point.candidate.results if group.axis.value(run) is not None]
    x = np.array([group.axis.value(run) for run in runs])
    quality = np.array([100 * run.value_of(side_of(run)) for run in runs])
    errors = np.array([100 * (run.value_of(f"{side_of(run)}_standard_error") or 0) for run in runs])
    spreads = np.array([_log_spread(SPEEDUP.interval(run)) for run in runs])
    chosen = draw.integers(len(runs), size=(DRAWS, len(runs)))
    noise = draw.normal(size=(2, *chosen.shape))
    drawn_x = (x[chosen] * np.exp(noise[0] * spreads[chosen])).mean(1)
    drawn_quality = (quality[chosen] + noise[1] * errors[chosen]).mean(1)
    return np.concatenate([[x.mean()], drawn_x]), np.concatenate([[quality.mean()], drawn_quality])


def _log_spread(interval: tuple[float, float] | None) -> float:
    """Standard deviation of the logarithm of a speedup, and of a latency, whose 95 % interval is this."""
    return 0.0 if interval is None else log(interval[1] / interval[0]) / SIGMAS_OF_INTERVAL


def _area_text(drawn: np.ndarray) -> str:
    low, high = np.quantile(drawn[1:], QUANTILES)
    return f"{drawn[0]:.3g} ({low:.3g} – {high:.3g})"


def _duels(pattern: str, areas: dict[str, np.ndarray]) -> str:
    """Against each other pattern: a tie where the interval of the difference of their areas holds 0."""
    counts = [0, 0, 0]
    for other, theirs in areas.items():
        if other != pattern:
            low, high = np.quantile((areas[pattern] - theirs)[1:], QUANTILES)
            counts[0 if low > 0 else 2 if high < 0 else 1] += 1
    return " / ".join(map(str, counts))


def _against_dense(points: Sequence[Point]) -> str:
    verdicts = [against_dense(point) for point in points]
    faster, slower = verdicts.count(FASTER), verdicts.count(SLOWER)
    return f"{faster} / {len(verdicts) - faster - slower} / {slower}"


def _best_near(group: ComparableResults, points: Sequence[Point]) -> float | None:
    """Among those that lost little against their own baseline, the dense network trained on where there is one."""
    speedups = [
        point.x
        for point in points
        if (lost := lost_for_choice(point.candidate, group)) is not None and lost <= NEAR_DENSE_POINTS
    ]
    return max(speedups, default=None)
