"""Comparable results in 80 columns: one line for the runs that share all but the seed, and only what decides."""

from rich import box
from rich.table import Table
from rich.text import Text

from sparsefront.report.baseline import points_lost
from sparsefront.report.column_kinds import percent, points, times
from sparsefront.report.comparable import ComparableResults
from sparsefront.report.points import Point
from sparsefront.report.table import add_row
from sparsefront.report.winners import PICKED, picked_as, settings_apart

HEADINGS = ("pattern", "sparsity", "recovery", "runs", "test", "lost", "speedup", "picked")
FOLDED = {"pattern": 17, "recovery": 13, "picked": 8}  # characters at most: numbers need room in 80 columns
SHOWN = ("pattern", "sparsity", "recovery")  # a line's settings are told where another agrees with it in all of these


def compact_table(group: ComparableResults, most: int | None = None) -> Table:
    """The points of a group, the best on the held-out part first, above the dense networks that they were made from; below them
    what the words in the last column mean.

    Args:
        most: lines of points; None: all.
    """
    table = Table(
        title=Text(group.title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0
    )
    for heading in HEADINGS:
        if heading in FOLDED:
            table.add_column(heading, max_width=FOLDED[heading], overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    picked = picked_as(group.candidates)
    apart = settings_apart(group.candidates, SHOWN)
    order = sorted(group.points(), key=lambda point: -(point.quality if point.val is None else point.val))
    for point in order[:most]:
        add_row(table, *_cells(point, apart[point.candidate.runs]), picked.get(point.candidate.runs, ""))
    if (dense := group.dense_quality()) is not None:
        add_row(table, "dense", "0", "", "", f"{dense:.2f}", "", "", "")
    if {"winner", "recipe"} & set(picked.values()):
        table.caption, table.caption_justify = Text(PICKED), "left"
    return table


def _cells(point: Point, apart: dict[str, str]) -> tuple[str, ...]:
    """Settings without which two lines would look alike stand below the name of what they belong to."""
    of_recovery = [text.removeprefix("recovery.") for key, text in apart.items() if key.startswith("recovery.")]
    others = [text.removeprefix("pattern.") for key, text in apart.items() if not key.startswith("recovery.")]
    results = point.candidate.results
    lost = [value for result in results if (value := points_lost(result)) is not None]
    spread = "" if point.spread is None else f" ± {point.spread:.2f}"
    speedups = point.candidate.speedups
    return (
        "\n".join((point.candidate.pattern, *others)),
        f"{point.candidate.sparsity:g}",
        "\n".join((point.candidate.recovery, *of_recovery)),
        str(len(results)),
        percent(point.quality / 100).removesuffix(" %") + spread,
        points(sum(lost) / len(lost) if lost else None),
        times(sum(speedups) / len(speedups) if speedups else None),
    )
