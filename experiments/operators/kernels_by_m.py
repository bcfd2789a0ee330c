"""Which kernel of a weight is fastest at each M, where the next one takes over, and up to which M it beats dense."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from pathlib import Path

from experiments.operators.measurements import SAME_SPARSITY, Measurement, Weight
from experiments.operators.picture import draw_grid, new_figure, save_png
from sparsefront.results.plots import DENSE_COLOR, series_styles

FEWEST_SIZES = 5  # of M, of a weight that is shown
CELL_INCHES, LEGEND_COLUMNS = (0.5, 0.22), 4
DENSE = "dense"
CSV_COLUMNS = (
    "family",
    "pattern",
    "granularity",
    "distribution",
    "dtype",
    "layout",
    "k",
    "n",
    "sparsity",
    "m",
    "kernel",
    "speedup",
    "next_kernel",
    "crosses_at_m",
    "crosses_dense_at_m",
)


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


def write_csv(found: dict[Problem, Times], path: Path) -> Path:
    """A line for each problem and M: the fastest kernel, its speedup over the fastest dense layout of the same process and dtype,
    the kernel that is fastest at the next M where it is another one, and the M at which the two, and sparse and dense, take the
    same time; empty where that is not known.
    """
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for problem, times in found.items():
            crossings = {one.low: one for one in times.crossings()}
            dense = {one.low: one for one in times.dense_crossings()}
            about = (*problem.weight, problem.dtype, problem.layout, problem.k, problem.n, f"{problem.sparsity:g}")
            for m in times.sizes:
                after = crossings[m].after if m in crossings else ""
                ends = [f"{of[m].at:.3g}" if m in of and of[m].at else "" for of in (crossings, dense)]
                writer.writerow([*about, m, times.fastest(m), f"{times.speedup(m):.4g}", after, *ends])
    return path


def write_png(found: dict[Problem, Times], path: Path) -> Path:
    """For each dtype and layout the [N, K] with most weights: their fastest kernel by M, dense where it wins."""
    from matplotlib.patches import Patch

    panels = _panels(found)
    shown = [times for part in panels.values() for times in part.values()]
    names = sorted({times.fastest(m) for times in shown for m in times.sizes if times.speedup(m) > 1})
    colors = {kernel: style.color for kernel, style in series_styles(names).items()}
    heights = [CELL_INCHES[1] * len(part) + 0.6 for part in panels.values()]
    sizes = [sorted({m for times in part.values() for m in times.sizes}) for part in panels.values()]
    figure = new_figure(CELL_INCHES[0] * max(map(len, sizes)) + 2.8, sum(heights) + 0.6)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for ((dtype, layout, k, n), part), of_part, axes in zip(panels.items(), sizes, grid, strict=True):
        rows = list(part)[::-1]  # the first on top
        cells = {
            (of_part.index(m), rows.index(problem)): (
                colors[times.fastest(m)] if times.speedup(m) > 1 else DENSE_COLOR,
                f"{times.speedup(m):.2f}",
            )
            for problem, times in part.items()
            for m in times.sizes
        }
        labels = [f"{problem.weight.label}, {100 * problem.sparsity:g} %" for problem in rows]
        draw_grid(axes, cells, [str(m) for m in of_part], labels)
        axes.set_title(
            f"{dtype}, {layout.replace('_', '-')}, {k} → {n}: fastest kernel by M, speedup over dense", fontsize=8
        )
    patches = [Patch(color=color, label=kernel) for kernel, color in colors.items()]
    patches.append(Patch(color=DENSE_COLOR, label="dense wins (figure: best sparse)"))
    figure.legend(handles=patches, loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=7)
    return save_png(figure, path)


def _panels(found: dict[Problem, Times]) -> dict[tuple[str, str, int, int], dict[Problem, Times]]:
    """(dtype, layout, K, N) -> its problems; of each dtype and layout the (K, N) with most of them."""
    groups: dict[tuple[str, str, int, int], dict[Problem, Times]] = defaultdict(dict)
    for problem, times in found.items():
        groups[problem.dtype, problem.layout, problem.k, problem.n][problem] = times
    largest: dict[tuple[str, str], tuple[str, str, int, int]] = {}
    for key, part in groups.items():
        if len(part) > len(groups.get(largest.get(key[:2]), {})):
            largest[key[:2]] = key
    return {key: groups[key] for key in largest.values()}


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
