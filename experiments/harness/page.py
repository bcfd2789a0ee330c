"""Pages: tables in Markdown, numbers as their cells, and text between two marks of a README.md."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, mean, stdev


def row(cells: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Iterable[object]], *, rule: str = "---|") -> list[str]:
    """Lines of a table.

    Args:
        rule: of a column, between head and rows.
    """
    return [row(head), "|" + rule * len(head), *map(row, rows)]


def fill(page: Path, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between the two marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"{page} has no marks {marks[0]!r} and {marks[1]!r}")
    page.write_text(f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{after}", encoding="utf-8")


def spread(values: Sequence[float]) -> str:
    """Their mean, with the standard deviation of at least two; "" of none."""
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def geometric_mean(values: Iterable[float], weights: Sequence[float] | None = None) -> float:
    """Of ratios, each as often as its weight says; of everything once by default."""
    return exp(fmean(map(log, values), weights))


def speedup(row: Mapping[str, str]) -> str:
    """A speedup with the ends of its bootstrap over repeats, "1.23 (1.20–1.26)": columns speedup, speedup_low, speedup_high."""
    return f"{float(row['speedup']):.2f} ({interval(row)})"


def interval(row: Mapping[str, str]) -> str:
    """The ends of a speedup's bootstrap over repeats: of five or more a 95 % interval, of fewer a range."""
    return f"{float(row['speedup_low']):.2f}–{float(row['speedup_high']):.2f}"


def number(row: Mapping[str, str] | None, name: str) -> float | None:
    """A cell; None where nothing was measured."""
    return float(row[name]) if row and row.get(name) else None


def per_cent(text: str) -> str:
    """A share in whole per cent; "" where it was not measured."""
    return f"{float(text):.0%}" if text else ""
