"""Comparable results in 80 columns: one line for the runs that share all but the seed, and only what decides."""

from rich import box
from rich.table import Table
from rich.text import Text

from sparsefront.report.baseline import points_lost
from sparsefront.report.column_kinds import percent, plain, points, times
from sparsefront.report.comparable import ComparableResults
from sparsefront.report.points import Point
from sparsefront.report.table import add_row
from sparsefront.report.winners import picked_as

HEADINGS = ("pattern", "sparsity", "recovery", "runs", "test", "lost", "speedup", "picked")


def compact_table(group: ComparableResults, most: int | None = None) -> Table:
    """The points of a group, the best on the held-out part first.

    Args:
        most: lines; None: all.
    """
    table = Table(
        title=Text(group.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in HEADINGS:
        text = heading in ("pattern", "recovery", "picked")
        table.add_column(heading, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    picked = picked_as(group.candidates)
    order = sorted(group.points(), key=lambda point: -(point.quality if point.val is None else point.val))
    for point in order[:most]:
        add_row(table, *_cells(point), picked.get(point.candidate.runs, ""))
    return table


def _cells(point: Point) -> tuple[str, ...]:
    results = point.candidate.results
    lost = [value for result in results if (value := points_lost(result)) is not None]
    spread = "" if point.spread is None else f" ± {point.spread:.2f}"
    speedups = point.candidate.speedups
    return (
        point.candidate.pattern,
        f"{point.candidate.sparsity:g}",
        plain(point.result.choice.recovery),
        str(len(results)),
        percent(point.quality / 100).removesuffix(" %") + spread,
        points(sum(lost) / len(lost) if lost else None),
        times(sum(speedups) / len(speedups) if speedups else None),
    )
