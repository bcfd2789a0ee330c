"""What each pattern reaches among comparable results, as a table."""

from sparsefront.report.candidates import holds_nothing_out
from sparsefront.report.columns import times
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
    """Judged on the held-out part; of older results, which lack it, on the reporting split; never where none was held out."""
    if any(map(holds_nothing_out, group.results)):
        return False
    of_val = group.picked_by == "val"
    quality, dense = (point.val, group.dense_val()) if of_val else (point.quality, group.dense_quality())
    return None not in (quality, dense) and quality >= dense - NEAR_DENSE_POINTS
