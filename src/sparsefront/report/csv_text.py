"""The text of a CSV file of results: whole lines, cells as they are written; also of one that a spreadsheet saved.

We write UTF-8, commas and `\\n`. A spreadsheet may save the same table with a byte order mark, semicolons or tabs, as UTF-16, and
with `TRUE` for `True`: that is read, too. It would take a cell that begins with `=` for a formula, so such cells are written with
an apostrophe before them, which reading takes off.
"""

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

from sparsefront.artifacts.bounded_files import Unreadable
from sparsefront.artifacts.csv_lines import separator_of

# One cell holds the kernels of all layers as JSON; the csv module's own limit is 128 KiB.
csv.field_size_limit(2**31 - 1)
# What a spreadsheet calculates rather than shows; a negative number is one for it, too.
_FORMULA = re.compile(r"[=+@\t\r\n]|-(?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def whole_lines(text: str) -> str:
    """The text up to its last line end that is not inside quotes."""
    while text and (not text.endswith("\n") or text.count('"') % 2):
        text = text[: text.rfind("\n", 0, len(text) - 1) + 1]
    return text


def parse_lines(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """The header, and each line as column -> cell.

    Raises:
        Unreadable: the csv module cannot take it apart.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", restkey="", delimiter=separator_of(text))
    try:
        header = list(reader.fieldnames or [])
        return header, [_shown(line) if _has_apostrophe(line) else line for line in reader]
    except csv.Error as error:
        raise Unreadable(f"is no CSV ({error})") from None


def format_lines(header: list[str], lines: Iterable[dict], *, with_header: bool) -> str:
    """The text of lines under a header; cells of other columns are left out."""
    text = io.StringIO(newline="")
    # with this line end the csv module quotes a cell that holds a carriage return, too
    writer = csv.DictWriter(text, header, restval="", extrasaction="ignore", lineterminator="\r\n")
    if with_header:
        writer.writeheader()
    ends = [text.tell()]
    for line in lines:
        writer.writerow({name: escaped(value) for name, value in line.items()})
        ends.append(text.tell())
    written = text.getvalue()
    starts = [0, *ends] if with_header else ends
    return "".join(f"{written[start : end - 2]}\n" for start, end in zip(starts, starts[1:]))


def escaped(cell: Any) -> Any:
    """Text that a spreadsheet would calculate, or that looks as if it were escaped, with an apostrophe before it."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell.lstrip("'")) else cell


def _shown(line: dict[str, str]) -> dict[str, str]:
    """The cells as they were before `escaped`. An apostrophe before other text belongs to it."""
    return {name: cell[1:] if cell[:1] == "'" and escaped(cell) != cell else cell for name, cell in line.items()}


def _has_apostrophe(line: dict[str, str]) -> bool:
    return any(cell[:1] == "'" for cell in line.values())
