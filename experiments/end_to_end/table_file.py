"""A CSV that grows line by line."""

import csv
from collections.abc import Sequence
from pathlib import Path


def read_rows(file: Path) -> list[dict[str, str]]:
    """Lines by column; none where there is no file."""
    if not file.is_file():
        return []
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def append(file: Path, columns: Sequence[str], row: dict[str, str]) -> None:
    """Add one line, and the head where the file is new."""
    new = not file.is_file()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, columns)
        if new:
            writer.writeheader()
        writer.writerow(row)
