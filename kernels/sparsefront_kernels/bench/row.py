"""The rows of the results: one measurement each, in long form."""

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One kernel on one problem.

    Args:
        family, kernel, pattern, granularity, distribution: what was multiplied, by what.
        group_m: m of n:m groups; 0 where the pattern has none.
        dtype: fp16, bf16, fp32 or tf32.
        sparsity: fraction of zeros of this kernel's weight.
        layout: of X and Y.
        latency_us, p20_us, p80_us: median and percentiles of one call; empty (None) where the product was wrong.
        dense_us: the fastest dense layout in the same run.
        baseline, baseline_us: the fastest peer that is not dense in the same run; empty where none ran.
        speedup: dense_us / latency_us.
        roofline_fraction: least possible time, from rates of the same run, over latency.
        relative_error, correct: against float64, before timing.
        gpu, torch, triton, cuda, commit, date: where it was measured.
    """

    family: str
    kernel: str
    pattern: str
    granularity: int
    distribution: str
    group_m: int
    dtype: str
    shape: str
    m: int
    k: int
    n: int
    sparsity: float
    layout: str
    latency_us: float | None
    p20_us: float | None
    p80_us: float | None
    dense_us: float | None
    baseline: str
    baseline_us: float | None
    speedup: float | None
    roofline_fraction: float | None
    relative_error: float
    correct: bool
    gpu: str
    torch: str
    triton: str
    cuda: str
    commit: str
    date: str


COLUMNS = tuple(field.name for field in fields(Row))
# what makes two rows of different runs comparable
KEY = ("kernel", "pattern", "granularity", "distribution", "dtype", "m", "k", "n", "sparsity", "layout")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a CSV with one line per row; numbers with four significant digits more than any clock resolves."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in asdict(row).items()} for row in rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The lines of a results file as text.

    Raises:
        ValueError: a column is missing.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
        return list(reader)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
