"""Rows of measurements: make, append as they are measured so that a stopped measurement resumes, and compare with records.

A row maps columns to cells.
"""

import codecs
import csv
import fcntl
import io
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from sparsefront.artifacts.bounded_files import Unreadable, read_table_text, separator_of
from sparsefront.artifacts.content_digest import versions
from sparsefront.artifacts.durable import whole_file
from sparsefront.options import shorten
from sparsefront.provenance import provenance
from sparsefront.results.record import Result
from sparsefront.results.store import TEXT

Row = dict[str, str]
SAVED_BY_OTHERS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how spreadsheets begin a file
DAY = len("2026-11-24")
COMMIT_DIGITS = 7
CLOSE = 1e-5  # relative tolerance: rows have six digits
FEWEST_DIGITS = 6  # of a digest that a row abbreviates
OF_THE_POINT = ("seed",)  # columns of the study itself: the repeat of a point, possibly of its recovery only


def where_and_when(device: torch.device | None = None) -> Row:
    """Columns gpu (empty on a CPU), torch, commit and date.

    Args:
        device: the measured device; None: the GPU, if there is one.
    """
    facts = provenance(device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "gpu": facts.gpu or "",
        "torch": facts.torch_version,
        "commit": facts.commit or "",
        "date": facts.time[:DAY],
    }


def made_by(*libraries: str) -> Row:
    """Date and versions of Python and of these libraries, for records that measure no device."""
    return {"date": today(), "python": platform.python_version(), **versions(*libraries)}


def today() -> str:
    """Today's date in UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()


def text(value: Any) -> Any:
    """A cell: numbers with six digits, "" for None, everything else unchanged."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def values_of(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Cells of these columns as text, to identify a row; "" for a missing column."""
    return tuple("" if (value := row.get(name)) is None else str(value) for name in names)


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, ending: str = "\n") -> Path:
    """Write these rows to a new file; columns that a row lacks stay empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator=ending)
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_lines(path: Path) -> list[dict[str, str]]:
    """Lines by column; none if the file does not exist.

    Raises:
        ValueError: it is not CSV.
    """
    if not path.is_file():
        return []
    try:
        text = read_table_text(path)
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator_of(text)))
    except (Unreadable, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line, with a header if the file is new; safe for concurrent processes on this host.

    Raises:
        ValueError: the file has other columns, or was saved by a spreadsheet in another format.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", **TEXT) as file:  # "a+" writes at the end wherever it was read
        fcntl.flock(file, fcntl.LOCK_EX)  # released on close
        file.seek(0)
        head = file.readline()
        if head.encode(**TEXT).startswith(SAVED_BY_OTHERS) or separator_of(head) != ",":
            raise ValueError(
                f"{path} was saved by a spreadsheet; save it as CSV in UTF-8 with commas, or name another file"
            )
        if head:
            _require_columns(path, next(csv.reader([head])), line)
        writer = csv.DictWriter(file, list(line), lineterminator="\r\n" if head.endswith("\r\n") else "\n")
        if not head:
            writer.writeheader()
        writer.writerow(line)


def replace_lines(path: Path, like: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    """Put lines in the place of those that have all these values, or at the end, atomically.

    Raises:
        ValueError: the file has other columns.
    """
    there = read_lines(path)
    if there:
        _require_columns(path, list(there[0]), lines[0])
    replaced = [all(line[name] == str(value) for name, value in like.items()) for line in there]
    others = [line for line, is_replaced in zip(there, replaced, strict=True) if not is_replaced]
    place = replaced.index(True) if any(replaced) else len(others)
    head = path.read_bytes().partition(b"\n")[0] if there else b""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as new:
        write(
            new,
            list(lines[0]),
            [*others[:place], *lines, *others[place:]],
            ending="\r\n" if b"," in head and head.endswith(b"\r") else "\n",
        )


def _require_columns(path: Path, columns: list[str], line: Mapping[str, Any]) -> None:
    if columns != list(line):
        raise ValueError(f"{path} has columns {','.join(columns)}, not {','.join(line)}; name another file")


def measure_missing(
    out: Path,
    cells: Iterable[Mapping[str, Any]],
    measure: Callable[..., Mapping[str, Any]],
    *,
    ends_at: float = math.inf,
) -> None:
    """Append a row for each dict of cells that no row of the file has yet: the cells and what `measure` returns for them.

    Args:
        measure: takes the cells as keyword arguments.
        ends_at: `time.monotonic()` after which nothing new is measured.
    """
    done = read_lines(out)
    for one in cells:
        if any(all(row.get(name) in (str(cell), str(text(cell))) for name, cell in one.items()) for row in done):
            continue
        if time.monotonic() >= ends_at:
            print("out of time: the other rows are left for the next call", flush=True)
            return
        row = {name: text(cell) for name, cell in ({**one} | measure(**one)).items()}
        append_line(out, row)
        print(row, flush=True)


def difference(row: Mapping[str, str], result: Result) -> str | None:
    """Describe the first cell of a row that differs from its record; None if there is none.

    Compares columns named like a field: numbers to six digits, digests and commits to the digits in the row. Empty cells and
    mappings written as text are not compared.
    """
    for name, value in result.flat().items():
        cell = row.get(name, "")
        if cell and name not in OF_THE_POINT and not _same(name, cell, value):
            return f"the row states {name}={shorten(cell)}, its record {shorten(value)}"
    return None


def _same(name: str, cell: str, value: object) -> bool:
    text = "" if value is None else str(value)
    if text[:1] in ("{", "["):
        return cell[:1] != text[:1] or cell == text
    if name == "commit" or name.endswith("sha256"):
        return len(cell) >= FEWEST_DIGITS and text.startswith(cell)
    try:
        return math.isclose(float(cell), float(text), rel_tol=CLOSE)
    except ValueError:
        return cell == text
