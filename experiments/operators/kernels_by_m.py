"""Which kernel of a weight is fastest at each M, where the next one takes over, and up to which M it beats dense."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from pathlib import Path

from measurements import SAME_SPARSITY, Measurement, Results, Weight

FEWEST_SIZES = 5  # of M, of a weight that is shown
DENSE = "dense"


@dataclass(frozen=True)
class Problem:
    """What is multiplied, at any M."""

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
        before, after: the fastest at the smaller and at the larger M.
        low, high: the two M.
        at: where both would take the same time, ln(time ratio) being linear in ln(M); None where one of the two was not
            measured at both M.
    """

    before: str
    after: str
    low: int
    high: int
    at: float | None

    @property
    def text(self) -> str:
        where = f"between {self.low} and {self.high}" if self.at is None else f"{self.at:.3g}"
        return f"{self.before} → {self.after}: {where}"


@dataclass
class Times:
    """Latencies in µs: M -> kernel -> time, of the kernels of a problem; of the fastest dense one beside them."""

    kernels: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    dense: dict[int, float] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return sorted(self.kernels)

    def fastest(self, m: int) -> str:
        return min(self.kernels[m], key=self.kernels[m].__getitem__)

    def speedup(self, m: int) -> float:
        """Of the fastest kernel over dense."""
        return self.dense[m] / min(self.kernels[m].values())

    def crossings(self) -> list[Crossing]:
        """Those between the kernels, by rising M."""
        return _crossings({m: (self.fastest(m), self.kernels[m]) for m in self.sizes})

    def dense_crossings(self) -> list[Crossing]:
        """Those between the fastest kernel, whichever that is, and dense."""
        best = {m: {"sparse": min(self.kernels[m].values()), DENSE: self.dense[m]} for m in self.sizes}
        return _crossings({m: (min(times, key=times.__getitem__), times) for m, times in best.items()})


def times_by_m(measurements: Iterable[Measurement]) -> dict[Problem, Times]:
    """Of sparse weights that were measured at `FEWEST_SIZES` M and more, with more than one kernel."""
    found: dict[Problem, Times] = defaultdict(Times)
    for one in measurements:
        if one.weight.family == DENSE:
            continue
        problem = Problem(one.weight, one.dtype, one.layout, one.k, one.n, round(one.sparsity, SAME_SPARSITY))
        times = found[problem]
        times.kernels[one.m][one.product_kernel] = one.latency_us
        times.dense[one.m] = one.dense_us
    return {
        problem: times
        for problem, times in found.items()
        if len(times.sizes) >= FEWEST_SIZES and len({name for each in times.kernels.values() for name in each}) > 1
    }


def write_kernels_by_m(found: dict[Problem, Times], results: Results, path: Path) -> Path:
    """A table for each dtype, layout and weight [N, K], with a line for each sparsity and a column for each M."""
    made = ", ".join(f"{name} {value}" for name, value in results.provenance.items() if value and name != "gpu")
    tables: dict[tuple, dict[Problem, Times]] = defaultdict(dict)
    for problem, times in found.items():
        tables[problem.dtype, problem.layout, problem.k, problem.n][problem] = times
    path.write_text(
        f"""# The fastest kernel by M

Written by `draw.py`: {results.provenance["gpu"]}, {made}.

Speedups of the fastest kernel over the fastest dense layout of the same process and dtype, bold where it wins. Kernels cross
where both would take the same time, ln(time ratio) being linear in ln(M) between what was measured.

"""
        + "\n\n".join(_table(*about, part) for about, part in tables.items())
        + "\n"
    )
    return path


def _table(dtype: str, layout: str, k: int, n: int, part: dict[Problem, Times]) -> str:
    sizes = sorted({m for times in part.values() for m in times.sizes})
    table = [["weight", *(f"M = {m}" for m in sizes), "crossings of kernels", "with dense"]]
    table.append(["---"] * len(table[0]))
    for problem, times in part.items():
        label = f"{problem.weight.label}, {100 * problem.sparsity:g} %"
        cells = [_cell(times, m) if m in times.kernels else "" for m in sizes]
        table.append([label, *cells, _texts(times.crossings()), _texts(times.dense_crossings())])
    lines = "\n".join("| " + " | ".join(cells) + " |" for cells in table)
    return f"## {dtype}, {layout.replace('_', '-')}, {k} → {n}\n\n{lines}"


def _cell(times: Times, m: int) -> str:
    speedup = f"{times.speedup(m):.2f}"
    return f"{times.fastest(m)} {f'**{speedup}**' if times.speedup(m) > 1 else speedup}"


def _texts(crossings: Sequence[Crossing]) -> str:
    return "; ".join(crossing.text for crossing in crossings) or "none"


def _crossings(by_m: dict[int, tuple[str, dict[str, float]]]) -> list[Crossing]:
    """From M -> (name of the fastest, times of all), by rising M."""
    found = []
    for (low, (before, first)), (high, (after, last)) in pairwise(by_m.items()):
        if before == after:
            continue
        at = None
        if after in first and before in last:
            behind, ahead = log(first[after] / first[before]), log(last[before] / last[after])
            share = behind / (behind + ahead) if behind + ahead else 0.0  # they take the same time at both
            at = exp(log(low) + share * log(high / low))
        found.append(Crossing(before, after, low, high, at))
    return found
