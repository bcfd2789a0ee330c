"""What a run and a sweep tell at their end. Paths, and messages that hold some, stand on lines of their own and are never
folded, so that they can be copied: a table would break them at its width.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sparsefront.counted import counted
from sparsefront.printable import printable
from sparsefront.report.budgets import budget_sentences
from sparsefront.report.compact_table import compact_table
from sparsefront.report.comparable import CPU_NOTE, ComparableResults, split_comparable
from sparsefront.report.printing import print_table, print_text
from sparsefront.report.result import Result
from sparsefront.report.run_table import run_table
from sparsefront.report.table import PIPED_WIDTH, least_width, records_table, results_table, table_console
from sparsefront.report.winners import CHOICES, candidate_table

MOST_ROWS = 40


def print_run(result: Result, paths: Sequence[Path]) -> None:
    """The table of a run, then its files."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    print_table(console, run_table(result))
    for path in paths:
        print(f"  {_short(path)}")


def print_group(group: ComparableResults, verdicts: Sequence[str], *, most: int | None = MOST_ROWS) -> None:
    """Comparable results: tables of runs and of what may be chosen, then what they say; in a terminal that is too narrow for
    the first one table of what decides.

    Args:
        verdicts: how sure the reporting split is of what was picked.
        most: lines of a table; None: all.
    """
    narrow, table = Console(), results_table(group.results, group.notes(), most=most, columns=group.columns)
    if _is_too_narrow(narrow, table):
        print_table(narrow, compact_table(group, most))
        _print_left_out(len(group.points()), most, "candidate")
        for line in [*([f"speedup: {CPU_NOTE}"] if group.device == "cpu" else []), *group.notes(), *verdicts]:
            print_text(narrow, line)
    else:
        console = table_console(table)
        print_table(console, table)
        _print_left_out(len(group.results), most, "run")
        if chosen := candidate_table(group.candidates):
            print_table(console, records_table(chosen[:most], CHOICES, verdicts))
            _print_left_out(len(chosen), most, "candidate")
    for sentence in budget_sentences(group):
        print_text(narrow, f"- {sentence}")
    print()


def print_results(results: Sequence[Result]) -> None:
    """Results, comparable or not, in one table; in a terminal that is too narrow for it a table of what decides for those that
    may be compared.
    """
    narrow, table = Console(), results_table(results)
    if not _is_too_narrow(narrow, table):
        print_table(table_console(table), table)
        return
    groups = split_comparable(results)
    for group in groups:
        print_table(narrow, compact_table(group))
    if any(group.device == "cpu" for group in groups):
        print(f"speedup: {CPU_NOTE}")


def _is_too_narrow(console: Console, table: Table) -> bool:
    return console.is_terminal and console.width < least_width(table)


def _print_left_out(count: int, most: int | None, what: str) -> None:
    if most is not None and count > most:
        print(f"{counted(count - most, f'more {what}')}: in compare.html, or rows=all")


@dataclass(frozen=True)
class Failure:
    """A point of a sweep that ended without a result: its name, the overrides that made it, and the message."""

    name: str
    overrides: Sequence[str]
    reason: str


def print_failures(failures: Sequence[Failure]) -> None:
    """Which points of a sweep failed, and why."""
    print(f"{len(failures)} failed:")
    for failure in failures:
        print(printable(f"  {failure.name}: {' '.join(failure.overrides)}"))
        print(f"     {printable(failure.reason, lines=True)}")


def _short(path: Path) -> str:
    """Relative to where the user stands, unless that would climb out."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
