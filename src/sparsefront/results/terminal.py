"""Console output: no trailing blanks, wrapping only in terminals, and no control characters from text."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from sparsefront.errors import printable

LEAST_WIDTH = 110  # in a narrower terminal, lines wrap instead of columns shrinking
PIPED_WIDTH = 200  # width for files and pipes, instead of 80 characters
UNLIMITED_WIDTH = 100_000


def table_console(table: Table | None = None) -> Console:
    """A console on stdout that is wide enough for a table, so that no digit is lost; a narrower terminal wraps its lines.

    Args:
        table: None: any from `records_table`, whose columns can all shrink.
    """
    console = Console()
    console.width = max(console.width, LEAST_WIDTH) if console.is_terminal else PIPED_WIDTH
    if table is not None:
        console.width = max(console.width, least_width(table))
    return console


def least_width(table: Table) -> int:
    """Minimum width, in characters, at which columns that must not wrap lose nothing."""
    console = Console(width=UNLIMITED_WIDTH)
    return console.measure(table).minimum


def plain_table(title: str, notes: Sequence[str] = (), **style: Any) -> Table:
    """A table without columns yet, with notes below, one line each."""
    style = {"pad_edge": False, "padding": (0, 1, 0, 0)} | style
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, **style)
    table.caption, table.caption_justify = Text("\n".join(notes)) if notes else None, "left"
    return table


def records_table(records: Sequence[Mapping[str, str]], title: str, notes: Sequence[str] = ()) -> Table:
    """A table of text by heading; notes below, one line each."""
    table = plain_table(title, notes)
    for heading in records[0]:
        table.add_column(printable(heading), overflow="fold")
    for record in records:
        add_row(table, *record.values())
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row as plain text: rich would interpret "[n_m]" as markup, and pass control characters through."""
    table.add_row(*(Text(printable(cell, lines=True)) for cell in cells))


def print_table(console: Console, table: Table) -> None:
    """Print a table with title and notes at console width; rich would wrap or pad them to the table's width."""
    bare = copy(table)
    bare.title = bare.caption = None
    if table.title is not None:
        print_text(console, table.title, style="table.title")
    console.print(_Trimmed(bare))
    if table.caption is not None:
        print_text(console, table.caption, style="table.caption")


def print_text(console: Console, text: object, style: StyleType = "") -> None:
    """Print text verbatim; in a file or pipe without wrapping, so that `grep` finds whole lines."""
    plain = Text(printable(text, lines=True))
    console.print(plain, style=style, highlight=False, soft_wrap=not console.is_terminal)


class _Trimmed:
    """Strips the trailing blanks of a table's lines."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._table, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()
