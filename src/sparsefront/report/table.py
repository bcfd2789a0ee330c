"""Tables of several results for the terminal."""

import re
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsefront.printable import printable
from sparsefront.report.column_kinds import Column
from sparsefront.report.columns import shared_metric, shown_columns
from sparsefront.report.comparable import CPU_NOTE
from sparsefront.report.result import Result

LEAST_WIDTH = 110  # a narrower terminal wraps the lines of a table rather than that its names are folded to pieces
PIPED_WIDTH = 200  # a table that goes to a file or a pipe is not squeezed into 80 characters
UNLIMITED_WIDTH = 100_000


def table_console(table: Table | None = None) -> Console:
    """A console on stdout that is wide enough for a table, so that no digit is lost; a narrower terminal wraps its lines.

    Args:
        table: None: any of `records_table`, whose columns all fold.
    """
    console = Console()
    console.width = max(console.width, LEAST_WIDTH) if console.is_terminal else PIPED_WIDTH
    if table is not None:
        console.width = max(console.width, least_width(table))
    return console


def least_width(table: Table) -> int:
    """In characters: with fewer, columns that must stay whole lose characters."""
    console = Console(width=UNLIMITED_WIDTH)
    return console.measure(table).minimum


def results_table(
    results: Sequence[Result],
    notes: Sequence[str] = (),
    *,
    most: int | None = None,
    columns: tuple[list[Column], dict[str, str]] | None = None,
) -> Table:
    """One line per result, in the order given; what all results share stands in the title, what is to be known about them below.

    Args:
        notes: one line each.
        most: lines of the table; None: all.
        columns: as `shown_columns` gives them, where that was done before.
    Raises:
        ValueError: there is no result.
    """
    if not results:
        raise ValueError("nothing to show: there is no result")
    shown, shared = shown_columns(results) if columns is None else columns
    metric = shared_metric(results)
    title = " · ".join(f"{field} {text}" for field, text in shared.items())
    timed_on_cpu = any(result.speed.latency_device == "cpu" and result.speed.speedup is not None for result in results)
    below = "\n".join([*([f"speedup: {CPU_NOTE}"] if timed_on_cpu else []), *notes])
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = Text(below) if below else None, "left"
    lines = [[printable(column.cell(result)) for column in shown] for result in results[:most]]
    for place, column in enumerate(shown):
        # Headings fold at their underscores, so that a dozen columns fit and stay the names that `sort=` takes.
        # Numbers stay whole; where the terminal is narrow it is names (run, kernel) that fold.
        justify, whole = ("right", True) if column.numeric else ("left", column.field == "pattern")
        words = re.split("[_ ]", heading := printable(column.heading(metric)))
        cells = [line[place] for line in lines] if whole else []
        table.add_column(
            heading.replace("_", "_\n").replace(" ", "\n"),
            justify=justify,
            no_wrap=whole,
            min_width=max(map(len, [*words, *cells])),
            overflow="fold",
        )
    for line in lines:
        add_row(table, *line)
    return table


def records_table(records: Sequence[Mapping[str, str]], title: str, notes: Sequence[str] = ()) -> Table:
    """Lines of text by heading.

    Args:
        notes: below the table, one line each.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = Text("\n".join(notes)) if notes else None, "left"
    for heading in records[0]:
        table.add_column(printable(heading), overflow="fold")
    for record in records:
        add_row(table, *record.values())
    return table


def add_row(table: Table, *cells: str) -> None:
    """As text: rich would read a reason that holds "[n_m]" as its own markup and drop it, and pass control characters on."""
    table.add_row(*(Text(printable(cell, lines=True)) for cell in cells))
