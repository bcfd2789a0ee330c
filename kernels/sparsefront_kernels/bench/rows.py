"""Result rows, one measurement each, and their file, to which finished rows are written immediately."""

import codecs
import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel on one problem.

    Args:
        family, kernel, pattern, granularity, distribution: the kernel and its weight.
        mask_settings: of the mask's pattern and its source weight, as "key=value" separated by spaces; empty for random
            masks.
        group_m: m of n:m groups; 0 if not applicable.
        dtype: fp16, bf16, fp32 or tf32.
        sparsity: actual fraction of zeros of this kernel's weight.
        asked_sparsity: the requested one, which the mask may miss by its rounding unit. 0 for dense.
        layout: of X and Y, in `problem.LAYOUTS`.
        latency_us, p20_us, p80_us: median and percentiles of one call; empty (None) if the product was wrong.
        samples: number of graph replays.
        predicted_us: by `sparsefront_kernels.performance_model`; empty for kernels and GPUs without a model, and for masks of
            a pattern, whose tiles it does not model.
        dense_us: the fastest dense layout in the same process, with the same dtype.
        baseline, baseline_us: the fastest non-dense peer in the same results; empty if none ran.
        speedup: dense_us / latency_us.
        roofline_fraction: roofline bound, from rates of the same run, over latency.
        relative_error, correct: against float64, before timing. For products beyond 4096³ multiply-adds, random rows of Y are
            compared (`correctness.LARGEST_REFERENCE`), and all of Y is searched for NaN.
        gpu, torch, triton, cuda, commit, date: conditions of the measurement.
    """

    family: str
    kernel: str
    pattern: str
    granularity: int
    distribution: str
    mask_settings: str
    group_m: int
    dtype: str
    shape: str
    m: int
    k: int
    n: int
    sparsity: float
    asked_sparsity: float | None
    layout: str
    latency_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    samples: int | None = None
    predicted_us: float | None = None
    dense_us: float | None = None
    baseline: str = ""
    baseline_us: float | None = None
    speedup: float | None = None
    roofline_fraction: float | None = None
    relative_error: float
    correct: bool
    gpu: str
    torch: str
    triton: str
    cuda: str
    commit: str
    date: str


COLUMNS = tuple(field.name for field in fields(Row))
LATER = ("mask_settings", "asked_sparsity", "samples", "predicted_us")  # columns missing in older files
# columns that identify comparable rows of different runs
KEY = (
    "kernel",
    "pattern",
    "granularity",
    "distribution",
    "mask_settings",
    "dtype",
    "m",
    "k",
    "n",
    "sparsity",
    "layout",
)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a CSV with one line per row; numbers have four more significant digits than any clock resolves."""
    write_texts(path, map(as_text, rows))


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append lines to a CSV, creating it if necessary; they are synced to disk on return."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(map(as_text, rows))
        file.flush()
        os.fsync(file.fileno())


def write_texts(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Write rows that are already text, in the order of `COLUMNS`.

    Raises:
        ValueError: a row has an unknown column; the file is not changed.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for row in rows:
        others = [str(name) for name in row if name not in COLUMNS]
        if others:
            raise ValueError(f"{path} would lose the columns {', '.join(others)}, which are none of a results file")
        writer.writerow(row)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a results file as text; columns missing in older files are empty.

    Raises:
        ValueError: a column is missing, or it is not text.
    """
    text = _table_text(path)
    separator = max(",;\t", key=text.partition("\n")[0].count)  # it may have been saved by a spreadsheet
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    missing = [name for name in COLUMNS if name not in (*LATER, *(reader.fieldnames or ()))]
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    return [dict.fromkeys(LATER, "") | row for row in reader]


def _table_text(path: Path) -> str:
    """Decode a table saved by a spreadsheet: without byte order mark, or from UTF-16."""
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save it as CSV in UTF-8") from None


def as_text(row: Row) -> dict[str, str]:
    """Convert a row to the text of its line."""
    return {name: _text(value) for name, value in asdict(row).items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


UNIT = ("dtype", "shape", "asked_sparsity", "gpu", "commit")


@dataclass(frozen=True)
class Results:
    """Rows of one GPU and commit, looked up by requested measurement.

    Args:
        path: of the file; None keeps rows in memory only.
        gpu, commit: of this run: other rows in the file are kept and count as not measured.
    """

    path: Path | None
    gpu: str
    commit: str
    _known: dict[tuple[str, ...], list[dict[str, str]]] = field(init=False, default_factory=dict)

    @classmethod
    def opened(cls, path: Path | None, *, gpu: str, commit: str, append: bool) -> "Results":
        """Create a results file, or continue one.

        Args:
            append: keep existing rows and do not measure them again.
        Raises:
            ValueError: the existing file has other columns or another format.
        """
        results = cls(path, gpu, commit)
        if path is None or not path.exists():
            return results
        if not append:
            path.unlink()
            return results
        if path.read_bytes().partition(b"\n")[0].rstrip(b"\r") != ",".join(COLUMNS).encode():
            why = "has other columns than these, or a spreadsheet saved it in a form of its own"
            raise ValueError(f"{path} {why}: {', '.join(COLUMNS)}; write to another file")
        results._remember(read_rows(path))
        return results

    def add(self, rows: Sequence[Row]) -> None:
        """Write finished rows."""
        if self.path is not None:
            append_rows(self.path, rows)
        self._remember(map(as_text, rows))

    def known(self, dtype_name: str, shape: str, sparsity: float) -> list[dict[str, str]]:
        """The rows of this GPU and commit for a shape and a requested sparsity, as text."""
        return self._known.get((dtype_name, shape, f"{sparsity:.6g}", self.gpu, self.commit), [])

    def _remember(self, rows: Iterable[dict[str, str]]) -> None:
        for row in rows:
            self._known.setdefault(tuple(row[name] for name in UNIT), []).append(row)
