"""Measured latencies of products by GPU model, and interpolation between them.

A table for the GPUs on which we measured ships with the package; a user's own (`python -m
sparsefront_kernels.performance_model rows.csv --table`) in $SPARSEFRONT_KERNELS_CACHE (default ~/.cache/sparsefront_kernels)
takes precedence.

    {"gpu": "NVIDIA H200", "made_with": {"torch": "2.11.0", "commit": "abc", "date": "2026-01-31", ...},
     "columns": ["family", "granularity", "distribution", "dtype", "m", "k", "n", "sparsity", "kernel", ...],
     "measured": [["gathered", 128, "equal", "fp16", 4096, 1024, 1024, 0.5, "gathered_sm90", 22.5, 15.6], ...]}
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from sparsefront_kernels.performance_model.product import Product
from sparsefront_kernels.tuning import store

SHIPPED = Path(__file__).parent / "measurements" / "shipped"
FOLDER = "performance_model/measurements"  # of the cache
LAYOUT = "row_major"
SPARSITY_SLACK = 0.005  # masks deviate less from the requested sparsity
MADE_WITH = ("torch", "triton", "cuda", "commit", "date")
Values = tuple[float, ...]


class Measured(NamedTuple):
    """A product of a row-major X [M, K] with a weight [N, K] by the fastest kernel of a family, and the dense product."""

    family: str
    granularity: int
    distribution: str
    dtype: str
    m: int
    k: int
    n: int
    sparsity: float
    kernel: str
    latency_us: float
    dense_us: float


@dataclass(frozen=True)
class LatencyTable:
    """Measurements on one GPU model.

    Args:
        gpu: the model's name as reported by torch.
        made_with: versions, commit and date of the measurements.
        measured: in any order.
    """

    gpu: str
    made_with: dict[str, str]
    measured: tuple[Measured, ...]

    def interpolated(self, product: Product, family: str) -> tuple[float, float] | None:
        """Microseconds of the family's fastest kernel and of dense, for row-major X and Y; None outside the measured range.

        ln(time) is linear in sparsity, then in ln(K·N) (shapes of one size are averaged), then in ln(M). Of several
        distributions of the weight, the most favorable for the sparse kernel counts.
        """
        if product.layout != LAYOUT:
            return None
        kinds: dict[str, list[Measured]] = defaultdict(list)
        for one in self.measured:
            if (one.family, one.granularity, one.dtype) == (family, product.granularity, product.dtype):
                kinds[one.distribution].append(one)
        size = product.k * product.n
        log_times = [_interpolated(measured, product.m, size, product.sparsity) for measured in kinds.values()]
        times = [(exp(sparse), exp(dense)) for sparse, dense in filter(None, log_times)]
        return max(times, key=lambda one: one[1] / one[0], default=None)

    def save(self, path: Path) -> Path:
        """Write the table as JSON with one measurement per line."""
        head = json.dumps({"gpu": self.gpu, "made_with": self.made_with, "columns": list(Measured._fields)}, indent=1)
        lines = ",\n".join(f"  {json.dumps(one)}" for one in self.measured)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head.removesuffix("}").rstrip()},\n "measured": [\n{lines}\n ]\n}}\n', encoding="utf-8")
        return path


def latency_table(gpu: str) -> LatencyTable | None:
    """The table of a GPU model: the user's own, or else the shipped one; None if there is neither."""
    return store.first_readable((user_file(gpu), SHIPPED / store.file_name(gpu)), load)


def table_for(gpu: str) -> LatencyTable | None:
    """The table of a GPU model, or of the model that stands in for it, which it names."""
    return store.own_or_stand_in(gpu, latency_table)


def load(path: Path) -> LatencyTable:
    """Read the result of `save`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = (dict(zip(content["columns"], row, strict=True)) for row in content["measured"])
    return LatencyTable(content["gpu"], content["made_with"], tuple(Measured(**row) for row in rows))


def user_file(gpu: str) -> Path:
    """Path of a user's own table for a GPU model."""
    return store.user_file(gpu, FOLDER)


def distilled(rows: Iterable[dict[str, str]], kernels: Collection[str]) -> LatencyTable:
    """The fastest row-major kernel of this package for each weight and problem, with the dense time.

    Without peers, which no layer can call, wrong products, and masks of patterns, whose settings the table does not have.

    Args:
        rows: of one results file, from `bench.rows.read_rows`.
        kernels: of this package.
    Raises:
        ValueError: rows of several GPU models, or no usable rows.
    """
    right = [row for row in rows if row["correct"] == "True" and not row["mask_settings"]]
    fit = [row for row in right if row["kernel"] in kernels and row["layout"] == LAYOUT]
    gpus = sorted({row["gpu"] for row in fit})
    if len(gpus) != 1:
        gpu_names = ", ".join(gpus) or "none"
        raise ValueError(f"one GPU model makes a table; the row-major rows of our kernels are of {gpu_names}")
    best: dict[tuple, Measured] = {}
    for row in fit:
        one = Measured(**{name: kind(row[name]) for name, kind in Measured.__annotations__.items()})
        key = one[: Measured._fields.index("kernel")]
        if key not in best or one.latency_us < best[key].latency_us:
            best[key] = one
    made_with = {name: ", ".join(sorted({row[name] for row in fit})) for name in MADE_WITH}
    return LatencyTable(gpus[0], made_with, tuple(sorted(best.values())))


def between(points: Mapping[float, Values], at: float, *, slack: float = 0.0) -> Values | None:
    """Linear interpolation of each value; None outside the points.

    Args:
        points: place -> values, of equal number.
        slack: distance outside that still counts as the nearest end.
    """
    if not points or not min(points) - slack <= at <= max(points) + slack:
        return None
    at = min(max(at, min(points)), max(points))
    low, high = max(place for place in points if place <= at), min(place for place in points if place >= at)
    share = 0.0 if high == low else (at - low) / (high - low)
    return tuple((1 - share) * one + share * other for one, other in zip(points[low], points[high], strict=True))


def _interpolated(measured: Iterable[Measured], m: int, size: int, sparsity: float) -> Values | None:
    """ln of the sparse and of the dense time, or None."""
    if m < 1:
        return None
    curves: dict[int, dict[tuple[int, int], dict[float, Values]]] = defaultdict(lambda: defaultdict(dict))
    for one in measured:
        curves[one.m][one.k, one.n][one.sparsity] = (log(one.latency_us), log(one.dense_us))
    by_m = {}
    for at_m, shapes in curves.items():
        by_size: dict[float, list[Values]] = defaultdict(list)
        for (k, n), curve in shapes.items():
            logs = between(curve, sparsity, slack=SPARSITY_SLACK)
            if logs is not None:
                by_size[log(k * n)].append(logs)
        means = {at: tuple(sum(one) / len(rows) for one in zip(*rows, strict=True)) for at, rows in by_size.items()}
        logs = between(means, log(size))
        if logs is not None:
            by_m[log(at_m)] = logs
    return between(by_m, log(m))
