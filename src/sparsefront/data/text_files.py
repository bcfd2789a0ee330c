"""Files of text that a user brings: lines in UTF-8, and tables with named columns, read without any other library's cache."""

import csv
import json
import logging
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from sparsefront.errors import InvalidSetting

log = logging.getLogger(__name__)


@contextmanager
def utf8_text(file: Path, *, newline: str | None = "\n", key: str = "path") -> Iterator[TextIO]:
    """Open a text file, for reading until the end.

    Args:
        newline: as in `open`; by default only line feeds end lines, because other separators occur inside sentences.
        key: the setting to blame.
    Raises:
        InvalidSetting: it is not UTF-8; names the encoding if it begins with a mark, else the first such line.
    """
    with file.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head:
        raise InvalidSetting(key, file, "is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    try:
        with file.open(encoding="utf-8-sig", newline=newline) as text:
            yield text
    except UnicodeDecodeError as error:
        number, byte = _first_undecodable(file)
        reason = f"line {number} is not UTF-8 (byte 0x{byte:02x}); convert it"
        raise InvalidSetting(key, file, f"{reason}, for example from Latin-1: iconv -f LATIN1 -t UTF-8") from error


def _first_undecodable(file: Path) -> tuple[int, int]:
    """Line number, from 1, and the byte; the decoder's own position is relative to its last block."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return number, line[error.start]
    raise AssertionError(f"{file} is UTF-8")


# Tables. The file of a split is the one of its name; its shards are named as on the hub.

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-(?P<count>\d{5})")


class Table(NamedTuple):
    """The rows of one split.

    Attributes:
        names: of all columns.
        columns: name -> one value per row, of the columns that were requested; None where there is none.
        class_names: column of class indices -> names of the classes.
    """

    names: Sequence[str]
    columns: Mapping[str, Sequence[Any]]
    class_names: Mapping[str, Sequence[str]]


def table_files(folder: Path) -> dict[str, list[Path]]:
    """Split -> files named after it, sorted, in the folder or, if that has none, in its folder `data`."""
    splits: dict[str, list[Path]] = {}
    for place in (folder, folder / "data"):
        for file in sorted(place.iterdir()) if place.is_dir() and not splits else ():
            if file.suffix.lower() in SUFFIXES and file.is_file():
                shard = SHARD.fullmatch(file.stem)
                splits.setdefault(shard["split"] if shard else file.stem, []).append(file)
    return splits


def read_table(files: Sequence[Path], wanted: Collection[str]) -> Table:
    """Read the file of a split, or all of its shards.

    Args:
        files: as in `table_files`.
        wanted: the requested columns; those that the files lack are left out.
    Raises:
        InvalidSetting: several files that are not the shards of one, a missing shard, or a file that cannot be read (gives
            the line).
    """
    shards = [shard for file in files if (shard := SHARD.fullmatch(file.stem))]
    names = ", ".join(file.name for file in files)
    if len(files) > 1 and (
        len(shards) < len(files) or len({(shard["count"], file.suffix) for shard, file in zip(shards, files)}) > 1
    ):
        raise InvalidSetting("path", files[0].parent, f"holds more than one file of a split: {names}; keep one")
    if shards and len(files) != int(shards[0]["count"]):
        raise InvalidSetting(
            "path", files[0].parent, f"holds {len(files)} of {int(shards[0]['count'])} shards: {names}"
        )
    tables = [_read(file, wanted) for file in files]
    for file, table in zip(files, tables):
        if list(table.names) != list(tables[0].names):
            allowed = f"has the columns {', '.join(table.names)}, and {files[0].name} has {', '.join(tables[0].names)}"
            raise InvalidSetting("path", file, allowed)
    columns = {name: [value for table in tables for value in table.columns[name]] for name in tables[0].columns}
    return Table(tables[0].names, columns, tables[0].class_names)


def _read(file: Path, wanted: Collection[str]) -> Table:
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(file, wanted)
    with utf8_text(file, newline="" if suffix == ".csv" else "\n") as text:
        if suffix in (".json", ".jsonl"):
            return _of_objects(_objects(text, file), wanted)
        return _of_fields(file, _csv_rows(text, file) if suffix == ".csv" else _tsv_rows(text), wanted)


def _csv_rows(text: TextIO, file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields, in strict CSV: a quotation mark that begins a field also ends it."""
    csv.field_size_limit(sys.maxsize)  # the default refuses long documents
    reader, rows, blank = csv.reader(text, strict=True), 0, 0
    try:
        for row in reader:
            rows, blank = rows + bool(row), blank + (not row)
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        allowed = (
            f"line {reader.line_num} is not CSV ({error}): quote fields with quotation marks, and double those inside"
        )
        raise InvalidSetting("path", file, allowed) from error
    if rows + blank != reader.line_num:
        log.info("%s: %d rows on %d lines: quoted fields hold line ends", file, rows - 1, reader.line_num)


def _tsv_rows(text: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields; quotation marks are text, as in GLUE."""
    for number, line in enumerate(text, start=1):
        line = line.rstrip("\r\n")
        if line:
            yield number, line.split("\t")


def _of_fields(file: Path, rows: Iterator[tuple[int, list[str]]], wanted: Collection[str]) -> Table:
    names = next(rows, (0, []))[1]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidSetting("path", file, f"has several columns {', '.join(repeated)}")
    places = {name: names.index(name) for name in wanted if name in names}
    columns: dict[str, list[str | None]] = {name: [] for name in places}
    for number, fields in rows:
        if len(fields) != len(names):
            raise InvalidSetting("path", file, f"line {number} has {len(fields)} fields instead of {len(names)}")
        for name, place in places.items():
            columns[name].append(fields[place] or None)
    return Table(names, columns, {})


def _objects(text: TextIO, file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON list of objects, or of a file with one object per line."""
    first = text.readline()
    if first.lstrip().startswith("["):
        parts, place = [first + text.read()], "row"
    else:
        parts, place = [first, *text], "line"
    for number, part in enumerate(parts, start=1):
        try:
            rows = json.loads(part) if place == "row" else [json.loads(part)] if part.strip() else []
        except json.JSONDecodeError as error:
            line = error.lineno if place == "row" else number
            raise InvalidSetting("path", file, f"line {line} is no JSON ({error.msg})") from error
        for inside, row in enumerate(rows):
            if not isinstance(row, dict):
                allowed = f"{place} {number + inside} is no JSON object with one value per column"
                raise InvalidSetting("path", file, allowed)
            yield row


def _of_objects(rows: Iterable[dict[str, Any]], wanted: Collection[str]) -> Table:
    names: dict[str, None] = {}
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    for row in rows:
        names |= dict.fromkeys(row)
        for name in wanted:
            columns[name].append(row.get(name))
    return Table(list(names), {name: columns[name] for name in wanted if name in names}, {})


def _read_parquet(file: Path, wanted: Collection[str]) -> Table:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            names = opened.schema_arrow.names
            columns = opened.read(columns=[name for name in wanted if name in names]).to_pydict()
            described = json.loads((opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InvalidSetting("path", file, f"cannot be read ({' '.join(str(error).split())})") from error
    features = described.get("info", {}).get("features", {})
    return Table(
        names, columns, {name: features[name]["names"] for name in columns if "names" in features.get(name, ())}
    )
