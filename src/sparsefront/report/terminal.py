"""What a run and a sweep tell at their end. Paths, and messages that hold some, stand on lines of their own and are never
folded, so that they can be copied: a table would break them at its width.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sparsefront.report.result import Result
from sparsefront.report.run_table import run_table
from sparsefront.report.table import PIPED_WIDTH


def print_run(result: Result, paths: Sequence[Path]) -> None:
    """The table of a run, then its files."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    console.print(run_table(result))
    for path in paths:
        print(f"  {_short(path)}")


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
        print(f"  {failure.name}: {' '.join(failure.overrides)}\n     {failure.reason}")


def _short(path: Path) -> str:
    """Relative to where the user stands, unless that would climb out."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
