"""Measured times of products, by GPU model, and what they say of a product between them.

A table for the GPUs on which we measured ships with the package; one that `python -m sparsefront_kernels.prediction` made
of a user's own measurements, in $SPARSEFRONT_KERNELS_CACHE (~/.cache/sparsefront_kernels where that is not set),
replaces it.

    {"gpu": "NVIDIA H200", "made_with": {"torch": "2.11.0", "commit": "abc", "date": "2026-01-31", ...},
     "columns": ["family", "granularity", "distribution", "dtype", "m", "k", "n", "sparsity", "kernel", ...],
     "measured": [["gathered", 128, "equal", "fp16", 4096, 1024, 1024, 0.5, "gathered_cuda", 22.5, 15.6], ...]}
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from sparsefront_kernels import renamed
from sparsefront_kernels.prediction.interpolation import Values, between, mean
from sparsefront_kernels.tuning.store import file_name

SHIPPED = Path(__file__).parent / "shipped"
FOLDER, OLD_FOLDER = "prediction", "forecast"  # of the cache; files in the old one are still read
SPARSITY_SLACK = 0.005  # masks miss the sparsity that was asked for by less
MADE_WITH = ("torch", "triton", "cuda", "commit", "date")


class Measured(NamedTuple):
    """One product of a row-major X [M, K] with a weight [N, K] by the fastest kernel of a family, and the dense one."""

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
class PredictedLatency:
    """Predicted microseconds of a product, sparse and dense.

    Args:
        source: "measurements", between which was interpolated, or "model".
        error: share by which the speedup may well be off, as far as it is known.
    """

    latency_us: float
    dense_us: float
    source: str = "measurements"
    error: float = 0.0

    @property
    def speedup(self) -> float:
        return self.dense_us / self.latency_us

    @property
    def may_win(self) -> bool:
        """Whether the speedup may be above 1, within its error."""
        return self.speedup * (1 + self.error) > 1


@dataclass(frozen=True)
class LatencyTable:
    """What was measured on one GPU model.

    Args:
        gpu: the model's name, as torch gives it.
        made_with: versions, commit and date of the measurements.
        measured: in any order.
    """

    gpu: str
    made_with: dict[str, str]
    measured: tuple[Measured, ...]

    def predict(
        self, *, family: str, granularity: int, dtype: str, m: int, k: int, n: int, sparsity: float
    ) -> PredictedLatency | None:
        """The expected time of Y[M, N] = X[M, K] · W[N, K]ᵀ, X and Y row-major; None outside what was measured.

        ln(time) is linear in sparsity, then in ln(K·N) (shapes of one size are averaged), then in ln(M). Of several
        distributions of the weight, the one that is kindest to the sparse kernel counts.

        Args:
            family, granularity: how the weight is stored, and its unit.
            dtype: fp16, bf16, fp32 or tf32.
            sparsity: fraction of zeros.
        """
        kinds: dict[str, list[Measured]] = defaultdict(list)
        for one in self.measured:
            if (one.family, one.granularity, one.dtype) == (family, granularity, dtype):
                kinds[one.distribution].append(one)
        found = [_interpolated(measured, m, k * n, sparsity) for measured in kinds.values()]
        predictions = [PredictedLatency(*(exp(value) for value in logs)) for logs in found if logs is not None]
        return max(predictions, key=lambda one: one.speedup, default=None)

    def save(self, path: Path) -> Path:
        """Write the table as JSON, a measurement a line."""
        head = json.dumps({"gpu": self.gpu, "made_with": self.made_with, "columns": list(Measured._fields)}, indent=1)
        lines = ",\n".join(f"  {json.dumps(one)}" for one in self.measured)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head.removesuffix("}").rstrip()},\n "measured": [\n{lines}\n ]\n}}\n')
        return path


def latency_table(gpu: str) -> LatencyTable | None:
    """The table of a GPU model: the user's own, or else the shipped one; None where there is neither."""
    places = (user_file(gpu), user_file(gpu, OLD_FOLDER), SHIPPED / file_name(gpu))
    path = next((path for path in places if path.exists()), None)
    return None if path is None else load(path)


def load(path: Path) -> LatencyTable:
    """Read what `save` wrote."""
    content = json.loads(path.read_text())
    rows = (dict(zip(content["columns"], row, strict=True)) for row in content["measured"])
    measured = (Measured(**row | {"kernel": renamed.kernel_name(row["kernel"])}) for row in rows)
    return LatencyTable(content["gpu"], content["made_with"], tuple(measured))


def user_file(gpu: str, folder: str = FOLDER) -> Path:
    """Where a user's own table for a GPU model is kept."""
    cache = os.environ.get("SPARSEFRONT_KERNELS_CACHE") or Path.home() / ".cache" / "sparsefront_kernels"
    return Path(cache) / folder / file_name(gpu)


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
            if (logs := between(curve, sparsity, slack=SPARSITY_SLACK)) is not None:
                by_size[log(k * n)].append(logs)
        if (logs := between({at: mean(rows) for at, rows in by_size.items()}, log(size))) is not None:
            by_m[log(at_m)] = logs
    return between(by_m, log(m))
