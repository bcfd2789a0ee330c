"""Rows of a measurement: their text, where and when they were made, and newer ones replace older ones.

A row is column -> cell. `sparsefront.results.store` reads a file and adds a row as soon as it is measured, so that a stopped
measurement goes on where it was; here is what makes such a row, and what writes files whose rows are all known.
"""

import csv
import platform
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch

from sparsefront.artifacts.content_digest import versions
from sparsefront.provenance import provenance

Row = dict[str, str]
DAY = len("2026-11-24")
COMMIT_DIGITS = 7
Found = TypeVar("Found", bound=Mapping[str, Any])


def where_and_when(device: torch.device | None = None) -> Row:
    """Columns gpu (empty on a CPU), torch, commit and date.

    Args:
        device: that is measured; None: the GPU where there is one.
    """
    facts = provenance(device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "gpu": facts.gpu or "",
        "torch": facts.torch_version,
        "commit": facts.commit or "",
        "date": facts.time[:DAY],
    }


def made_by(*libraries: str) -> Row:
    """Day, and the versions of Python and of these libraries: of a record that no device is measured for."""
    return {"date": today(), "python": platform.python_version(), **versions(*libraries)}


def today() -> str:
    """In UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()


def text(value: Any) -> Any:
    """A cell: numbers with six digits, nothing for None, everything else as it is."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def values_of(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Some cells as text, which tell rows apart; a column that is absent is empty."""
    return tuple("" if (value := row.get(name)) is None else str(value) for name in names)


def newest(rows: Iterable[Found], key: Callable[[Found], Hashable]) -> list[Found]:
    """Rows in the order in which their keys were first measured, each as it was measured last."""
    found = {}
    for row in rows:
        found[key(row)] = row
    return list(found.values())


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of these rows alone; a column that a row lacks is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
