"""Read the benchmark's CSV as measurements, and group them for reports."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sparsefront_kernels.bench.rows import read_rows
from sparsefront_kernels.problem import kernel_and_layout

from experiments.harness.rows import values_of

DTYPES = ("fp16", "bf16", "fp32", "tf32")
MASKS = ("distribution", "pattern", "mask_settings")  # columns that identify masks
FEWEST_SIZES = 5  # values of M of a weight that is plotted by M
SAME_SPARSITY = 3  # decimals; achievable sparsities of two shapes differ by less


class Weight(NamedTuple):
    """The kind of a sparse weight, independent of the kernel.

    `distribution` is a name of `distribution_names`: for a pattern's masks, the pattern's name.
    """

    family: str
    pattern: str
    granularity: int
    distribution: str

    @property
    def label(self) -> str:
        """Short text for legends: "gathered 128, equal"."""
        if self.family == "dense":
            return "dense"
        return f"{self.family} {self.granularity}" + (f", {self.distribution}" if self.distribution else "")


@dataclass(frozen=True)
class Measurement:
    """A correct product: Y[M, N] = X[M, K] · W[N, K]ᵀ by one kernel.

    Args:
        sparsity: fraction of zeros of this weight.
        latency_us, dense_us: of this kernel, and of the fastest dense one in the same process.
        asked_sparsity: requested sparsity, which a mask may miss; None in older files.
        predicted_us: by the performance model; None if it has no prediction.
    """

    weight: Weight
    kernel: str
    dtype: str
    m: int
    k: int
    n: int
    sparsity: float
    layout: str
    latency_us: float
    dense_us: float
    asked_sparsity: float | None = None
    predicted_us: float | None = None

    @cached_property
    def log_speedup(self) -> float:
        """ln(dense time / this time)."""
        return math.log(self.dense_us / self.latency_us)

    @property
    def product_kernel(self) -> str:
        """The kernel's name without its layout suffix; plots share its style among layouts."""
        return kernel_and_layout(self.kernel)[0]


@dataclass(frozen=True)
class Results:
    """A results file.

    Args:
        measurements: the correct products, in the file's order.
        left_out: number of rows with wrong products.
    """

    measurements: list[Measurement]
    left_out: int


def read_measurements(path: Path) -> Results:
    """Read a CSV of `python -m sparsefront_kernels.bench`.

    Raises:
        OSError: the file cannot be read.
        ValueError: missing columns (all named), no rows, no correct product, or an invalid value (with its line and
            column).
    """
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path} has no row")
    right = [(line, row) for line, row in enumerate(rows, start=2) if row["correct"] == "True" and row["latency_us"]]
    if not right:
        raise ValueError(f"{path} has no right product: none of its {len(rows)} rows can be shown")
    distributions = distribution_names(rows)
    return Results(
        measurements=[_measurement(path, line, row, distributions[values_of(row, MASKS)]) for line, row in right],
        left_out=len(rows) - len(right),
    )


M_CLASSES = {
    1: "M = 1",
    2: "M = 2 to 64",
    65: "M = 65 to 512",
    513: "M = 513 to 2048",
    2049: "M = 2049 to 8192",
    8193: "M > 8192",
}
"""Least M -> label of a range of M that shares a color."""


def m_class(m: int) -> str:
    """Label of the range that contains M."""
    return [label for least, label in M_CLASSES.items() if least <= m][-1]


def fastest(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The fastest kernel of each weight, problem, sparsity and layout, in order of first appearance."""
    best: dict[tuple, Measurement] = {}
    for one in measurements:
        problem = (one.dtype, one.m, one.k, one.n, round(one.sparsity, SAME_SPARSITY), one.layout)
        key = (one.weight, *problem)
        if key not in best or one.latency_us < best[key].latency_us:
            best[key] = one
    return list(best.values())


def distribution_names(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, ...], str]:
    """Masks → name: the distribution of random masks; else the pattern, with its settings that differ in the file:
    "tile_wise", or "tile_wise whole_tiles=true"."""
    every = dict.fromkeys(values_of(row, MASKS) for row in rows)
    settings: dict[str, list[set[str]]] = defaultdict(list)
    for _, pattern, text in every:
        if text:
            settings[pattern].append(set(text.split()))
    names = {}
    for distribution, pattern, text in every:
        shared = set.intersection(*settings[pattern]) if settings[pattern] else set()
        own = [setting for setting in text.split() if setting not in shared]
        names[distribution, pattern, text] = " ".join([pattern, *own]) if text else distribution
    return names


def _measurement(path: Path, line: int, row: dict[str, str], distribution: str) -> Measurement:
    def number(column: str, kind: type = float) -> float:
        try:
            value = kind(row[column])
        except ValueError:
            value = math.nan
        at_least_0 = column in ("granularity", "sparsity", "asked_sparsity")
        if not math.isfinite(value) or value < 0 or (value == 0 and not at_least_0):
            allowed = "of at least 0" if at_least_0 else "above 0"
            raise ValueError(f"{path}, line {line}: {column}={row[column]!r} is no number {allowed}")
        return value

    if row["dtype"] not in DTYPES:
        raise ValueError(f"{path}, line {line}: dtype={row['dtype']!r} is not one of {', '.join(DTYPES)}")
    return Measurement(
        weight=Weight(row["family"], row["pattern"], number("granularity", int), distribution),
        kernel=row["kernel"],
        dtype=row["dtype"],
        **{size: number(size, int) for size in ("m", "k", "n")},
        sparsity=number("sparsity"),
        layout=row["layout"],
        latency_us=number("latency_us"),
        dense_us=number("dense_us"),
        asked_sparsity=number("asked_sparsity") if row["asked_sparsity"] else None,
        predicted_us=number("predicted_us") if row["predicted_us"] else None,
    )
