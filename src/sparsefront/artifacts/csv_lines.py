"""A CSV that grows line by line, so that a killed study goes on behind its last line; or of which a line is kept up to date.

We write UTF-8 and commas. What a spreadsheet saved with a byte order mark, semicolons or tabs, or as UTF-16, is read, too.
"""

import codecs
import csv
import fcntl
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import Unreadable, read_bytes_bounded
from sparsefront.artifacts.durable import whole_file

# A line torn inside a character must not stop its repair: bytes that are no UTF-8 pass through unchanged.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
MOST_TABLE_BYTES = 4 * 2**30
SEPARATORS = ",;\t"
SAVED_BY_OTHERS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table_text(path: Path) -> str:
    """The text of a CSV file, without a byte order mark.

    Raises:
        Unreadable: as `read_bytes_bounded`, or UTF-16 that is cut off.
    """
    content = read_bytes_bounded(path, max_bytes=MOST_TABLE_BYTES)
    if not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.removeprefix(codecs.BOM_UTF8).decode(**TEXT)
    try:
        return content.decode("utf-16")
    except UnicodeDecodeError:
        raise Unreadable("is UTF-16 text that is cut off; save it as CSV in UTF-8") from None


def separator_of(text: str) -> str:
    """What stands between the cells of the first line; names of columns hold none of these characters."""
    first = text.partition("\n")[0]
    return max(SEPARATORS, key=first.count)


def read_lines(path: Path) -> list[dict[str, str]]:
    """Lines by column; none where there is no file.

    Raises:
        ValueError: it is no CSV, which the message names.
    """
    if not path.is_file():
        return []
    try:
        text = read_table_text(path)
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator_of(text)))
    except (Unreadable, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None


def drop_lines(path: Path, like: Mapping[str, str]) -> None:
    """Take out the lines that have all these values, at any moment the file is whole; one without such lines is left alone."""
    lines = read_lines(path)
    kept = [line for line in lines if any(line.get(name) != value for name, value in like.items())]
    if len(kept) == len(lines):
        return
    ending = "\r\n" if path.read_bytes().partition(b"\n")[0].endswith(b"\r") else "\n"
    _write_whole(path, list(lines[0]), kept, ending)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add one line, and its columns as the head where the file is new; other processes of this host may do so at once.

    Raises:
        ValueError: the file has other columns, or a spreadsheet saved it: our lines would not fit to its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", **TEXT) as file:  # whatever is read, it is written at the end
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        file.seek(0)
        head = file.readline()
        if head.encode(**TEXT).startswith(SAVED_BY_OTHERS) or separator_of(head) != ",":
            raise ValueError(
                f"{path} was saved by a spreadsheet; save it as CSV in UTF-8 with commas, or name another file"
            )
        if head and next(csv.reader([head])) != list(line):
            raise ValueError(f"{path} has columns {head.strip()}, not {','.join(line)}; name another file")
        writer = csv.DictWriter(file, list(line), lineterminator="\r\n" if head.endswith("\r\n") else "\n")
        if not head:
            writer.writeheader()
        writer.writerow(line)


def put_line(path: Path, line: Mapping[str, Any], *, key: str) -> None:
    """Replace the line that has the same value in column `key`, or add it; at any moment the file is whole.

    Raises:
        ValueError: the file has other columns.
    """
    lines = read_lines(path)
    if lines and list(lines[0]) != list(line):
        raise ValueError(f"{path} has columns {','.join(lines[0])}, not {','.join(line)}; name another file")
    places = [place for place, other in enumerate(lines) if other[key] == str(line[key])] or [len(lines)]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(path, list(line), [*lines[: places[0]], line, *lines[places[0] + 1 :]])


def _write_whole(path: Path, columns: list[str], lines: Iterable[Mapping[str, Any]], ending: str = "\n") -> None:
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator=ending)
        writer.writeheader()
        writer.writerows(lines)
