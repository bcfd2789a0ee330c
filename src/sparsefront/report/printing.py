"""Tables and lines of text on a console: no line ends in blanks, only a terminal folds text, and no text controls one."""

from copy import copy

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from sparsefront.printable import printable


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
