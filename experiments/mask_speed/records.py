"""Measurements as lines of a CSV file and as a table in the terminal."""

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sparsefront.provenance import provenance


def origin(device: torch.device) -> dict[str, Any]:
    """What a number was measured on and with; `device` says cpu or the name of the GPU, so that the two never mix."""
    facts = provenance(device)
    return {
        "device": facts.gpu or "cpu",
        "threads": torch.get_num_threads() if device.type == "cpu" else "",
        "torch": facts.torch_version,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": facts.commit,
    }


def append_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Add the records to a CSV file; the first makes it.

    Raises:
        ValueError: the file has other columns.
    """
    header = list(records[0])
    fresh = not path.exists()
    if not fresh:
        with path.open(newline="") as file:
            found = next(csv.reader(file), [])
        if found != header:
            raise ValueError(f"{path} has columns {','.join(found)}, not {','.join(header)}; name another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, header, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(records)


def show(title: str, records: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print some columns; floats with four digits."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column.replace("_", " "))
    for record in records:
        values = (record[column] for column in columns)
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    Console().print(table)
