"""The benchmark's CSV as measurements, and the ways in which reports group them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sparsefront_kernels.bench.row import read_rows

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "tf32": 4}
SAME_SPARSITY = 3  # decimals: what a mask can express in one shape differs from the next by less


class Weight(NamedTuple):
    """What was multiplied by, whatever kernel did it."""

    family: str
    pattern: str
    granularity: int
    distribution: str

    @property
    def label(self) -> str:
        """Short, for legends: "gathered 128, equal"."""
        if self.family == "dense":
            return "dense"
        return f"{self.family} {self.granularity}" + (f", {self.distribution}" if self.distribution else "")


@dataclass(frozen=True)
class Measurement:
    """A right product: Y[M, N] = X[M, K] · W[N, K]ᵀ through one kernel.

    Args:
        sparsity: fraction of zeros of this weight.
        latency_us, dense_us: of this kernel; of the fastest dense one in the same process.
        floor_us: the least time it could take, by the rates of its run.
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
    floor_us: float

    @cached_property
    def log_speedup(self) -> float:
        """ln(dense time / this time)."""
        return math.log(self.dense_us / self.latency_us)

    @property
    def useful_flops(self) -> float:
        """2·M·K·N·density: products with weights that are kept."""
        return 2.0 * self.m * self.k * self.n * (1 - self.sparsity)

    @property
    def bytes_moved(self) -> float:
        """Kept values, X and Y, each once; indices, of which the CSV does not know, are not in it."""
        elements = self.k * self.n * (1 - self.sparsity) + self.m * (self.k + self.n)
        return elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Results:
    """A results file.

    Args:
        measurements: the right products, in the file's order.
        left_out: how many rows are not among them, since their product was wrong.
        provenance: gpu, torch, triton, cuda, commit, date -> the values in the file, ", " between several.
    """

    measurements: list[Measurement]
    left_out: int
    provenance: dict[str, str]


def read_measurements(path: Path) -> Results:
    """Read a CSV of `python -m sparsefront_kernels.bench`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a column is missing (all that are get named), there is no row, no right product, or a value is not
            what its column holds (line and column are named).
    """
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path} holds no row")
    right = [(line, row) for line, row in enumerate(rows, start=2) if row["correct"] == "True" and row["latency_us"]]
    if not right:
        raise ValueError(f"{path} holds no right product: none of its {len(rows)} rows can be shown")
    names = ("gpu", "torch", "triton", "cuda", "commit", "date")
    return Results(
        measurements=[_measurement(path, line, row) for line, row in right],
        left_out=len(rows) - len(right),
        provenance={name: ", ".join(dict.fromkeys(row[name] for row in rows)) for name in names},
    )


def fastest(measurements: Iterable[Measurement]) -> list[Measurement]:
    """For each weight, problem, sparsity and layout the fastest kernel, in order of first appearance."""
    best: dict[tuple, Measurement] = {}
    for one in measurements:
        problem = (one.dtype, one.m, one.k, one.n, round(one.sparsity, SAME_SPARSITY), one.layout)
        key = (one.weight, *problem)
        if key not in best or one.latency_us < best[key].latency_us:
            best[key] = one
    return list(best.values())


def _measurement(path: Path, line: int, row: dict[str, str]) -> Measurement:
    def number(column: str, kind: type = float) -> float:
        try:
            value = kind(row[column])
        except ValueError:
            value = math.nan
        at_least_0 = column in ("granularity", "sparsity")
        if not math.isfinite(value) or value < 0 or (value == 0 and not at_least_0):
            allowed = "of at least 0" if at_least_0 else "above 0"
            raise ValueError(f"{path}, line {line}: {column}={row[column]!r} is no number {allowed}")
        return value

    if row["dtype"] not in ELEMENT_BYTES:
        raise ValueError(f"{path}, line {line}: dtype={row['dtype']!r} is not one of {', '.join(ELEMENT_BYTES)}")
    latency_us = number("latency_us")
    return Measurement(
        weight=Weight(row["family"], row["pattern"], number("granularity", int), row["distribution"]),
        kernel=row["kernel"],
        dtype=row["dtype"],
        **{size: number(size, int) for size in ("m", "k", "n")},
        sparsity=number("sparsity"),
        layout=row["layout"],
        latency_us=latency_us,
        dense_us=number("dense_us"),
        floor_us=number("roofline_fraction") * latency_us,
    )
