"""A CSV that grows line by line, so that a killed study goes on behind its last line; or of which a line is kept up to date."""

import csv
import fcntl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparsefront.artifacts.durable import whole_file


def read_lines(path: Path) -> list[dict[str, str]]:
    """Lines by column; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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
        ValueError: the file has other columns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", encoding="utf-8") as file:  # whatever is read, it is written at the end
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        file.seek(0)
        head = file.readline()
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
