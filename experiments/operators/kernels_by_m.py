"""The fastest kernel of a weight at each M, the M at which it changes, and up to which M it beats dense."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from pathlib import Path

from experiments.harness.rows import write
from experiments.operators.measurements import FEWEST_SIZES, SAME_SPARSITY, Measurement, Weight

DENSE = "dense"
CSV_COLUMNS = "family pattern granularity distribution dtype layout k n sparsity m kernel speedup".split()
CSV_COLUMNS += ["next_kernel", "crosses_at_m", "crosses_dense_at_m"]


@dataclass(frozen=True)
class Problem:
    """A product with any M."""

    weight: Weight
    dtype: str
    layout: str
    k: int
    n: int
    sparsity: float


@dataclass(frozen=True)
class Crossing:
    """The fastest kernel changes between two neighboring M.

    Args:
        before, after: the fastest kernel at the smaller and at the larger M.
        low, high: the two M.
        at: M at which both take equally long, with ln(time ratio) linear in ln(M); None if one of them was not measured at
            both M.
    """

    before: str
    after: str
    low: int
    high: int
    at: float | None


@dataclass
class Times:
    """Latencies of a problem in µs: M -> kernel -> time, and M -> time of the fastest dense kernel."""

    kernels: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    dense: dict[int, float] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return sorted(self.kernels)

    def fastest(self, m: int) -> str:
        return min(self.kernels[m], key=self.kernels[m].__getitem__)

    def speedup(self, m: int) -> float:
        """Speedup of the fastest kernel over dense."""
        return self.dense[m] / min(self.kernels[m].values())

    def crossings(self) -> list[Crossing]:
        """Crossings between sparse kernels, by rising M."""
        return _crossings({m: (self.fastest(m), self.kernels[m]) for m in self.sizes})

    def dense_crossings(self) -> list[Crossing]:
        """Crossings between the fastest sparse kernel and dense."""
        best = {m: {"sparse": min(self.kernels[m].values()), DENSE: self.dense[m]} for m in self.sizes}
        return _crossings({m: (min(times, key=times.__getitem__), times) for m, times in best.items()})


def times_by_m(measurements: Iterable[Measurement]) -> dict[Problem, Times]:
    """Times of sparse weights with at least `FEWEST_SIZES` M and more than one kernel."""
    by_problem: dict[Problem, Times] = defaultdict(Times)
    for one in measurements:
        if one.weight.family == DENSE:
            continue
        problem = Problem(one.weight, one.dtype, one.layout, one.k, one.n, round(one.sparsity, SAME_SPARSITY))
        times = by_problem[problem]
        times.kernels[one.m][one.product_kernel] = one.latency_us
        times.dense[one.m] = one.dense_us
    return {
        problem: times
        for problem, times in by_problem.items()
        if len(times.sizes) >= FEWEST_SIZES and len({name for each in times.kernels.values() for name in each}) > 1
    }


def write_by_m_csv(found: dict[Problem, Times], path: Path) -> Path:
    """A line per problem and M: the fastest kernel, its speedup over the fastest dense layout of the same process and dtype, the
    fastest kernel at the next M if it differs, and the M at which these two, and sparse and dense, take equally long; empty if
    unknown.
    """
    lines = []
    for problem, times in found.items():
        crossings = {one.low: one for one in times.crossings()}
        dense = {one.low: one for one in times.dense_crossings()}
        about = (*problem.weight, problem.dtype, problem.layout, problem.k, problem.n, f"{problem.sparsity:g}")
        for m in times.sizes:
            after = crossings[m].after if m in crossings else ""
            ends = [f"{of[m].at:.3g}" if m in of and of[m].at else "" for of in (crossings, dense)]
            lines.append([*about, m, times.fastest(m), f"{times.speedup(m):.4g}", after, *ends])
    return write(path, CSV_COLUMNS, [dict(zip(CSV_COLUMNS, line, strict=True)) for line in lines])


def _crossings(by_m: dict[int, tuple[str, dict[str, float]]]) -> list[Crossing]:
    """Crossings by rising M, from M -> (name of the fastest, times of all)."""
    crossings = []
    for (low, (before, first)), (high, (after, last)) in pairwise(by_m.items()):
        if before == after:
            continue
        at = None
        if after in first and before in last:
            behind, ahead = log(first[after] / first[before]), log(last[before] / last[after])
            share = behind / (behind + ahead) if behind + ahead else 0.0  # equally fast at both
            at = exp(log(low) + share * log(high / low))
        crossings.append(Crossing(before, after, low, high, at))
    return crossings
