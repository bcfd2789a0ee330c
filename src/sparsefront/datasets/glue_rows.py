"""Rows of GLUE, from the original TSV files or from the hub."""

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sparsefront.datasets.download import hub_split
from sparsefront.datasets.glue_tasks import GlueTask
from sparsefront.errors import InvalidSetting

log = logging.getLogger(__name__)
HUB_ID = "nyu-mll/glue"


class GlueRow(NamedTuple):
    """One example; `label` is a class number, or a score where the task is regression."""

    first: str
    second: str | None
    label: int | float


def columns_of(file: Path, task: GlueTask) -> dict[str | int, int]:
    """Position of each column that the task needs.

    Raises:
        InvalidSetting: the header lacks one: this is another task's file, or not the original layout; or no UTF-8.
    """
    needed = [column for column in (task.first, task.second, task.label) if column is not None]
    with _utf8_lines(file) as lines:
        header: list[str] | range = next(lines, "").rstrip("\r\n").split("\t")
    if not task.has_header:
        header = range(len(header))
    if missing := [str(column) for column in needed if column not in header]:
        raise InvalidSetting(
            "path",
            file,
            f"its first line has no column {', '.join(missing)}: not the original GLUE layout of {task.folder}",
        )
    return {column: header.index(column) for column in needed}


def read_tsv(file: Path, task: GlueTask) -> list[GlueRow]:
    """All rows of a file in the original layout.

    Fields are separated by tabs and by nothing else: quote characters are plain text, so lines are simply split.

    Raises:
        InvalidSetting: a row with too few fields, an unknown label or no UTF-8, by its line; no rows at all.
    """
    columns = columns_of(file, task)
    rows, broken = [], 0
    with _utf8_lines(file) as lines:
        for number, line in enumerate(lines, start=1):
            if (task.has_header and number == 1) or not line.strip():
                continue
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) > max(columns.values()):
                rows.append(_row(fields, columns, task, f"{file} line {number}"))
            elif task.skips_broken_rows:
                broken += 1
            else:
                raise InvalidSetting(
                    "path",
                    file,
                    f"line {number} has {len(fields)} fields, {max(columns.values()) + 1} are needed by the "
                    f"original GLUE layout of {task.folder}",
                )
    if broken:
        log.info("%s: left out %d rows with too few fields", file, broken)
    if not rows:
        raise InvalidSetting("path", file, "has no rows" + (", only a header" if task.has_header else ""))
    return rows


@contextmanager
def _utf8_lines(file: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file; a complaint names the first one that is not UTF-8."""
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as lines:
            yield lines
    except UnicodeDecodeError as error:
        number, byte = _first_undecodable(file)
        reason = f"line {number} is not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8"
        raise InvalidSetting("path", file, f"{reason}: iconv -f ITS_ENCODING -t UTF-8") from error


def _first_undecodable(file: Path) -> tuple[int, int]:
    """Number of the line, from 1, and the byte. The decoder itself counts from where its last block began."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return number, line[error.start]
    raise AssertionError(f"{file} is UTF-8")


def _row(fields: list[str], columns: dict[str | int, int], task: GlueTask, where: str) -> GlueRow:
    label = fields[columns[task.label]]
    try:
        value = task.label_names.index(label) if task.label_names else float(label)
        if not math.isfinite(value):
            raise ValueError(label)
    except ValueError as error:
        allowed = ", ".join(task.label_names) or "a number"
        raise InvalidSetting("path", where, f"label {label!r} is none of {task.folder}'s: {allowed}") from error
    return GlueRow(fields[columns[task.first]], None if task.second is None else fields[columns[task.second]], value)


def write_hub_rows(file: Path, name: str, task: GlueTask, *, part: str, revision: str) -> None:
    """Download `part` (`train` or `dev`) of the task called `name` and write it to `file`, a JSON list per line."""
    rows = hub_split(
        HUB_ID,
        config=name,
        revision=revision,
        split="train" if part == "train" else task.hub_dev,
        missing=f"set dataset.path to a folder with the original GLUE files (train.tsv, {task.dev_file}.tsv)",
    )
    with file.open("w", encoding="utf-8") as lines:
        for row in rows:
            second = None if task.hub_second is None else row[task.hub_second]
            lines.write(json.dumps([row[task.hub_first], second, row["label"]], ensure_ascii=False) + "\n")


def read_hub_rows(file: Path) -> Iterator[GlueRow]:
    """The rows that `write_hub_rows` has written."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield GlueRow(*json.loads(line))
