"""Markdown pages: tables, number formatting, and text generated between two marks of a README.md."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, mean, stdev


def row(cells: Iterable[object]) -> str:
    """A table row."""
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Iterable[object]], *, rule: str = "---|") -> list[str]:
    """Lines of a table.

    Args:
        rule: separator of one column, between head and rows.
    """
    return [row(head), "|" + rule * len(head), *map(row, rows)]


def fill(page: Path, marks: tuple[str, str], text: str) -> None:
    """Replace the text between the two marks of a page.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"{page} has no marks {marks[0]!r} and {marks[1]!r}")
    page.write_text(f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{after}", encoding="utf-8")


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation as text; the mean alone for one value, "" for none."""
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def geometric_mean(values: Iterable[float], weights: Sequence[float] | None = None) -> float:
    """Geometric mean of ratios, optionally weighted."""
    return exp(fmean(map(log, values), weights))


def speedup(row: Mapping[str, str]) -> str:
    """A speedup with its bootstrap interval, "1.23 (1.20–1.26)", from columns speedup, speedup_low and speedup_high."""
    return f"{float(row['speedup']):.2f} ({interval(row)})"


def interval(row: Mapping[str, str]) -> str:
    """A speedup's bootstrap interval over repeats: 95 % from five repeats on, else the range."""
    return f"{float(row['speedup_low']):.2f}–{float(row['speedup_high']):.2f}"


def number(row: Mapping[str, str] | None, name: str) -> float | None:
    """A cell as a number; None if it was not measured."""
    return float(row[name]) if row and row.get(name) else None


def per_cent(text: str) -> str:
    """A fraction in whole percent; "" if it was not measured."""
    return f"{float(text):.0%}" if text else ""
