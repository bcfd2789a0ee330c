"""What each pattern reaches among comparable results, as a table."""

from sparsefront.report.baseline import points_lost
from sparsefront.report.candidates import offers_no_choice
from sparsefront.report.column_kinds import times
from sparsefront.report.comparable import ComparableResults, Point, by_pattern
from sparsefront.report.pareto import dominated_area

NEAR_DENSE_POINTS = 1.0  # percentage points below dense that still count as "the same quality"


def pattern_summary(group: ComparableResults) -> list[dict[str, str]]:
    """Per pattern: its runs, its best speedup near the dense quality, and the area that it dominates.

    The area ends at the dense baseline and at one point below the worst quality here, the same corner for all patterns.
    """
    cost = group.axis.cost
    dense, front = group.dense_point(), set(group.front())
    summary = []
    for pattern, series in by_pattern(group.points()).items():
        timed = [(point.x, point.quality) for point in series if point.x is not None]
        near = [
            point.result.speed.speedup
            for point in series
            if point.result.speed.speedup is not None and _near(point, group)
        ]
        corner = None if dense is None else (cost(dense[0]), min(point.quality for point in group.points()) - 1)
        area = None if corner is None else dominated_area([(cost(x), quality) for x, quality in timed], corner)
        summary.append(
            {
                "pattern": pattern,
                "runs": str(len(series)),
                "on the front": str(sum(point in front for point in timed)),
                f"best speedup within {NEAR_DENSE_POINTS:g} point of dense": times(max(near, default=None)),
                f"dominated area, {group.axis.unit} · points": "–" if area is None else f"{area:.3g}",
            }
        )
    return summary


def _near(point: Point, group: ComparableResults) -> bool:
    """Whether it lost little against its own baseline: the dense network trained on, where there is one.

    Judged on the held-out part; of older results, which lack it, on the reporting split; never where nothing may be chosen.
    """
    if any(map(offers_no_choice, group.results)):
        return False
    lost = points_lost(point.result, held_out=group.picked_by == "val")
    return lost is not None and lost <= NEAR_DENSE_POINTS
