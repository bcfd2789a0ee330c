"""Read the benchmark's CSV as measurements, and group them for reports."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sparsefront_kernels.bench.rows import KEY, read_rows
from sparsefront_kernels.problem import kernel_and_layout

from experiments.harness.rows import newest, values_of

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "tf32": 4}
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
        roofline_bound_us: lower bound of the latency, by the rates of its run.
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
    roofline_bound_us: float
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

    @property
    def useful_flops(self) -> float:
        """2·M·K·N·density: FLOPs with kept weights."""
        return 2.0 * self.m * self.k * self.n * (1 - self.sparsity)

    @property
    def bytes_moved(self) -> float:
        """Bytes of kept values, X and Y, each once; without indices, which are not in the CSV."""
        elements = self.k * self.n * (1 - self.sparsity) + self.m * (self.k + self.n)
        return elements * ELEMENT_BYTES[self.dtype]


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


@dataclass(frozen=True)
class MClass:
    """A range of M that shares a style in plots."""

    label: str
    least: int


M_CLASSES = (
    MClass("M = 1", 1),
    MClass("M = 2 to 64", 2),
    MClass("M = 65 to 512", 65),
    MClass("M = 513 to 2048", 513),
    MClass("M = 2049 to 8192", 2049),
    MClass("M > 8192", 8193),
)


def m_class(m: int) -> MClass:
    """The range that contains M."""
    return [one for one in M_CLASSES if one.least <= m][-1]


def by_dtype(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """Group by dtype, in the order of `ELEMENT_BYTES`; plots and tables show one dtype each."""
    found: dict[str, list[Measurement]] = {dtype: [] for dtype in ELEMENT_BYTES}
    for one in measurements:
        found[one.dtype].append(one)
    return {dtype: rows for dtype, rows in found.items() if rows}


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


def merged(rows: Iterable[dict[str, str]], later: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The last row of each product, in the order in which products first appear. Wrong products replace older rows too, so that
    no older row hides a fault.
    """
    return newest((*rows, *later), _product)


def _product(row: dict[str, str]) -> tuple[str, ...]:
    """Identity of a row's measurement, by requested sparsity, which random masks miss slightly."""
    named = {name: row[name] for name in KEY} | {"sparsity": row["asked_sparsity"] or row["sparsity"]}
    return (*named.values(), row["gpu"])


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

    if row["dtype"] not in ELEMENT_BYTES:
        raise ValueError(f"{path}, line {line}: dtype={row['dtype']!r} is not one of {', '.join(ELEMENT_BYTES)}")
    latency_us = number("latency_us")
    return Measurement(
        weight=Weight(row["family"], row["pattern"], number("granularity", int), distribution),
        kernel=row["kernel"],
        dtype=row["dtype"],
        **{size: number(size, int) for size in ("m", "k", "n")},
        sparsity=number("sparsity"),
        layout=row["layout"],
        latency_us=latency_us,
        dense_us=number("dense_us"),
        roofline_bound_us=number("roofline_fraction") * latency_us,
        asked_sparsity=number("asked_sparsity") if row["asked_sparsity"] else None,
        predicted_us=number("predicted_us") if row["predicted_us"] else None,
    )
