"""The lowest sparsity at which a pattern's kernels beat dense: the Tile-Wise talk's "critical sparsity"."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp
from pathlib import Path

from experiments.harness import page
from experiments.harness.rows import write
from experiments.operators.measurements import FEWEST_SIZES, SAME_SPARSITY, Measurement, Weight, fastest

# (family, granularity) -> critical sparsity on a V100: Guo et al., "Accelerating Sparse DNN Models without
# Hardware-Support via Tile-Wise Sparsity", SC20, slide "Impact of TW Granularity" (execution time of the products).
# tile_wise is stored as gathered.
PAPER = {
    ("gathered", 128): "TW-128: 40 %",
    ("gathered", 64): "TW-64: 75 %",
    ("blocked", 64): "BW-64: ~85 %",
    ("blocked", 32): "BW-32: ~85 %",
}
CSV_COLUMNS = "family pattern granularity distribution dtype layout m shapes from_sparsity speedup_there".split()
CSV_COLUMNS += "to_sparsity speedup_at_end crossover verdict paper".split()

Curve = Sequence[tuple[float, float]]
"""(sparsity, ln of the geometric mean speedup over shapes), by rising sparsity; linear between the points."""


@dataclass(frozen=True)
class Crossover:
    """One weight in one layout at one M.

    Args:
        shapes: number of (K, N) averaged.
        curve: pairs (sparsity, ln of the geometric mean speedup), over the sparsities that every shape covers; at least one.
    """

    weight: Weight
    dtype: str
    layout: str
    m: int
    shapes: int
    curve: Curve

    @property
    def sparsity(self) -> float | None:
        """Where the curve first rises above dense; None if it never does, or is above dense from its first point on."""
        for (low, below), (high, above) in zip(self.curve, self.curve[1:]):
            if below <= 0 < above:
                return low + (high - low) * below / (below - above)
            if below > 0:
                break
        return None

    @property
    def verdict(self) -> str:
        """The crossover in words, in percent."""
        first, last = self.curve[0], self.curve[-1]
        if first[1] > 0:
            return f"below {_percent(first[0])}" if len(self.curve) > 1 else f"wins at {_percent(first[0])}"
        if self.sparsity is not None:
            return _percent(ceil(round(100 * self.sparsity, 6)) / 100)  # dense wins one percent below
        return f"never, up to {_percent(last[0])}" if len(self.curve) > 1 else f"loses at {_percent(first[0])}"

    @property
    def needed(self) -> float | None:
        """The lowest sparsity at which it wins, at least the lowest measured one; None if it never wins."""
        return self.curve[0][0] if self.curve[0][1] > 0 else self.sparsity

    @property
    def short(self) -> str:
        """In percent: "63", "≤50" if it wins at the lowest measured sparsity, "–" if it never wins."""
        if self.needed is None:
            return "–"
        return f"{'≤' if self.curve[0][1] > 0 else ''}{ceil(round(100 * self.needed, 6))}"

    @property
    def paper(self) -> str:
        return PAPER.get((self.weight.family, self.weight.granularity), "")


def crossovers(measurements: Iterable[Measurement]) -> list[Crossover]:
    """One crossover per weight, dtype, layout and M, if its shapes share a range of sparsities.

    Takes the fastest kernel of each shape and sparsity, interpolates ln(speedup) linearly in sparsity per shape, and averages
    over the shapes, which may thus have different sparsities.
    """
    groups: dict[tuple, dict[tuple[int, int], dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in fastest(measurements):
        if one.weight.family != "dense":
            shapes = groups[one.weight, one.dtype, one.layout, one.m]
            shapes[one.k, one.n][round(one.sparsity, SAME_SPARSITY)] = one.log_speedup
    curves = [Crossover(*key, len(shapes), mean_curve(list(shapes.values()))) for key, shapes in groups.items()]
    return sorted((one for one in curves if one.curve), key=_place)


def mean_curve(shapes: Sequence[dict[float, float]]) -> Curve:
    """Mean of the shapes' piecewise linear curves {sparsity: ln speedup}, where all are defined."""
    low, high = max(min(shape) for shape in shapes), min(max(shape) for shape in shapes)
    points = sorted({sparsity for shape in shapes for sparsity in shape if low <= sparsity <= high})
    return [(at, sum(_between(shape, at) for shape in shapes) / len(shapes)) for at in points]


def markdown(found: Iterable[Crossover], dtype: str) -> list[str]:
    """A table of weights and layouts by M, for those with at least `FEWEST_SIZES` M; `–` where dense always wins."""
    lines: dict[tuple[Weight, str], dict[int, Crossover]] = defaultdict(dict)
    for one in found:
        if one.dtype == dtype:
            lines[one.weight, one.layout][one.m] = one
    shown = {key: by_m for key, by_m in lines.items() if len(by_m) >= FEWEST_SIZES}
    sizes = sorted({m for by_m in shown.values() for m in by_m})
    head = [f"{dtype}, lowest sparsity that beats dense, %", *(f"M = {m}" for m in sizes)]
    return page.table(
        head,
        [
            [f"{weight.label}, {layout.replace('_', '-')}", *(by_m[m].short if m in by_m else "" for m in sizes)]
            for (weight, layout), by_m in shown.items()
        ],
    )


def write_csv(found: Sequence[Crossover], path: Path) -> Path:
    """Write a line per weight, layout and M; `crossover` is empty if there is none."""
    lines = []
    for one in found:
        ends = [value for at, log in (one.curve[0], one.curve[-1]) for value in (f"{at:g}", f"{exp(log):.4g}")]
        crossing = "" if one.sparsity is None else f"{one.sparsity:.4f}"
        lines.append([*one.weight, one.dtype, one.layout, one.m, one.shapes, *ends, crossing, one.verdict, one.paper])
    return write(path, CSV_COLUMNS, [dict(zip(CSV_COLUMNS, line, strict=True)) for line in lines])


def _between(curve: dict[float, float], at: float) -> float:
    """The piecewise linear curve at `at`, which lies within it."""
    if at in curve:
        return curve[at]
    low, high = max(place for place in curve if place < at), min(place for place in curve if place > at)
    share = (at - low) / (high - low)
    return (1 - share) * curve[low] + share * curve[high]


def _place(one: Crossover) -> tuple:
    """Sort key: by family, coarse before fine."""
    family, pattern, granularity, distribution = one.weight
    return (family, pattern, -granularity, distribution, one.dtype, one.layout, one.m)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
