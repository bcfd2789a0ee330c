"""Tables and lines of text on a console: no line ends in blanks, only a terminal folds text, and no text controls one."""

from collections.abc import Mapping, Sequence
from copy import copy

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from sparsefront.errors import printable

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


def print_table(console: Console, table: Table) -> None:
    """Print a table; its title and what stands below it are as wide as the console, where rich folds them at the width of the
    table or fills them up to it.
    """
    bare = copy(table)
    bare.title = bare.caption = None
    if table.title is not None:
        print_text(console, table.title, style="table.title")
    console.print(_Trimmed(bare))
    if table.caption is not None:
        print_text(console, table.caption, style="table.caption")


def print_text(console: Console, text: object, style: StyleType = "") -> None:
    """Print text as it is, in a file or a pipe a line as one line, so that `grep` finds it whole."""
    plain = Text(printable(text, lines=True))
    console.print(plain, style=style, highlight=False, soft_wrap=not console.is_terminal)


class _Trimmed:
    """A table without the blanks that fill its lines."""

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
