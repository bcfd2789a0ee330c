"""The rows of the results, one measurement each, and their file: rows are on disk as soon as they are finished."""

import codecs
import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One kernel on one problem.

    Args:
        family, kernel, pattern, granularity, distribution: what was multiplied, by what.
        mask_settings: of the pattern that made the mask, and of the weight that it was made for, as "key=value" separated by
            blanks; empty where a mask was drawn at random.
        group_m: m of n:m groups; 0 where the pattern has none.
        dtype: fp16, bf16, fp32 or tf32.
        sparsity: fraction of zeros of this kernel's weight.
        asked_sparsity: what was asked for; a mask misses it by what its units cannot express. 0 for dense.
        layout: of X and Y, one of `problem.LAYOUTS`.
        latency_us, p20_us, p80_us: median and percentiles of one call; empty (None) where the product was wrong.
        samples: graph replays that they are of.
        predicted_us: predicted by `sparsefront_kernels.performance_model`; empty for kernels and GPUs without a model, and for
            masks of a pattern, whose tiles it does not model.
        dense_us: the fastest dense layout in the same process, of the same dtype.
        baseline, baseline_us: the fastest peer that is not dense in the same results; empty where none ran.
        speedup: dense_us / latency_us.
        roofline_fraction: least possible time, from rates of the same run, over latency.
        relative_error, correct: against float64, before timing. Of products beyond 4096³ multiply-adds random rows of Y
            are compared (`correctness.LARGEST_REFERENCE`), and all of Y is searched for NaN.
        gpu, torch, triton, cuda, commit, date: where it was measured.
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
    latency_us: float | None
    p20_us: float | None
    p80_us: float | None
    samples: int | None
    predicted_us: float | None
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
LATER = ("mask_settings", "asked_sparsity", "samples", "predicted_us")  # columns that older files lack
# what makes two rows of different runs comparable
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
    """Write a CSV with one line per row; numbers with four significant digits more than any clock resolves."""
    write_texts(path, map(as_text, rows))


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add lines to a CSV, which is made where it does not exist; the lines are on disk when this returns."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(map(as_text, rows))
        file.flush()
        os.fsync(file.fileno())


def write_texts(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Write rows that are text already, in the order of `COLUMNS`.

    Raises:
        ValueError: a row has a column of another name; the file stays as it was.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for row in rows:
        if others := [str(name) for name in row if name not in COLUMNS]:
            raise ValueError(f"{path} would lose the columns {', '.join(others)}, which are none of a results file")
        writer.writerow(row)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The lines of a results file as text; columns that only newer files have are empty where they are missing.

    Raises:
        ValueError: a column is missing, or it is no text.
    """
    text = _table_text(path)
    separator = max(",;\t", key=text.partition("\n")[0].count)  # a spreadsheet may have saved it
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    if missing := [name for name in COLUMNS if name not in (*LATER, *(reader.fieldnames or ()))]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    return [dict.fromkeys(LATER, "") | row for row in reader]


def _table_text(path: Path) -> str:
    """Without the byte order mark, or as UTF-16, as spreadsheets save a table."""
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save it as CSV in UTF-8") from None


def as_text(row: Row) -> dict[str, str]:
    """A row as its line holds it."""
    return {name: _text(value) for name, value in asdict(row).items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


UNIT = ("dtype", "shape", "asked_sparsity", "gpu", "commit")


@dataclass(frozen=True)
class Results:
    """Rows of one GPU and commit, by what was asked for.

    Args:
        path: the file; None keeps rows in memory only.
        gpu, commit: of this run: rows of others stay in the file and count as not measured.
    """

    path: Path | None
    gpu: str
    commit: str
    _known: dict[tuple[str, ...], list[dict[str, str]]] = field(init=False, default_factory=dict)

    @classmethod
    def opened(cls, path: Path | None, *, gpu: str, commit: str, append: bool) -> "Results":
        """Begin a file, or go on with one.

        Args:
            append: whether rows that the file holds stay, and are not measured again.
        Raises:
            ValueError: the file to go on with has other columns, or another form.
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
        """The rows of this GPU and commit for a shape at an asked sparsity, as text."""
        return self._known.get((dtype_name, shape, f"{sparsity:.6g}", self.gpu, self.commit), [])

    def _remember(self, rows: Iterable[dict[str, str]]) -> None:
        for row in rows:
            self._known.setdefault(tuple(row[name] for name in UNIT), []).append(row)
