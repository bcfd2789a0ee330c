"""The lowest sparsity at which a pattern's kernels beat dense: the Tile-Wise talk's "critical sparsity"."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp
from pathlib import Path

from measurements import SAME_SPARSITY, Measurement, Results, Weight, fastest

# (family, granularity) -> critical sparsity on a V100: Guo et al., "Accelerating Sparse DNN Models without
# Hardware-Support via Tile-Wise Sparsity", SC20, slide "Impact of TW Granularity" (execution time of the products).
# tile_wise is stored as gathered.
PAPER = {
    ("gathered", 128): "TW-128: 40 %",
    ("gathered", 64): "TW-64: 75 %",
    ("blocked", 64): "BW-64: ~85 %",
    ("blocked", 32): "BW-32: ~85 %",
}
FEW_ROWS = 64  # M of a table of its own
CSV_COLUMNS = (
    "family",
    "pattern",
    "granularity",
    "distribution",
    "dtype",
    "layout",
    "m",
    "shapes",
    "from_sparsity",
    "speedup_there",
    "to_sparsity",
    "speedup_at_end",
    "crossover",
    "verdict",
    "paper",
)

Curve = Sequence[tuple[float, float]]
"""(sparsity, ln of the geometric mean speedup over shapes), by rising sparsity; linear between the points."""


@dataclass(frozen=True)
class Crossover:
    """One weight in one layout at one M.

    Args:
        shapes: how many (K, N) the mean is over.
        curve: of the speedup, over the sparsities that every shape covers; at least one point.
    """

    weight: Weight
    dtype: str
    layout: str
    m: int
    shapes: int
    curve: Curve

    @property
    def sparsity(self) -> float | None:
        """Where the curve first rises above dense; None where it never does, or does so from its first point on."""
        for (low, below), (high, above) in zip(self.curve, self.curve[1:]):
            if below <= 0 < above:
                return low + (high - low) * below / (below - above)
            if below > 0:
                break
        return None

    @property
    def verdict(self) -> str:
        """In words, percent."""
        first, last = self.curve[0], self.curve[-1]
        if first[1] > 0:
            return f"below {_percent(first[0])}" if len(self.curve) > 1 else f"wins at {_percent(first[0])}"
        if self.sparsity is not None:
            return _percent(ceil(round(100 * self.sparsity, 6)) / 100)  # dense still wins at the percent below
        return f"never, up to {_percent(last[0])}" if len(self.curve) > 1 else f"loses at {_percent(first[0])}"

    @property
    def paper(self) -> str:
        return PAPER.get((self.weight.family, self.weight.granularity), "")


def crossovers(measurements: Iterable[Measurement]) -> list[Crossover]:
    """One for each weight, dtype, layout and M that has a sparsity which every one of its shapes covers.

    The fastest kernel counts at each shape and sparsity. ln(speedup) is taken as linear in sparsity between what was
    measured, per shape, and its mean over the shapes is the curve, so that shapes may differ in their sparsities.
    """
    groups: dict[tuple, dict[tuple[int, int], dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in fastest(measurements):
        if one.weight.family != "dense":
            shapes = groups[one.weight, one.dtype, one.layout, one.m]
            shapes[one.k, one.n][round(one.sparsity, SAME_SPARSITY)] = one.log_speedup
    found = [Crossover(*key, len(shapes), mean_curve(list(shapes.values()))) for key, shapes in groups.items()]
    return sorted((one for one in found if one.curve), key=_place)


def mean_curve(shapes: Sequence[dict[float, float]]) -> Curve:
    """Mean over shapes of their piecewise linear curves {sparsity: ln speedup}, where all of them are defined."""
    low, high = max(min(shape) for shape in shapes), min(max(shape) for shape in shapes)
    points = sorted({sparsity for shape in shapes for sparsity in shape if low <= sparsity <= high})
    return [(at, sum(_between(shape, at) for shape in shapes) / len(shapes)) for at in points]


def write_markdown(found: Sequence[Crossover], results: Results, path: Path) -> Path:
    """A table for each dtype, few rows apart, with a line for each weight and layout and a column for each M."""
    made = ", ".join(f"{name} {value}" for name, value in results.provenance.items() if value and name != "gpu")
    tables = []
    for dtype in dict.fromkeys(one.dtype for one in found):
        for few in (False, True):
            part = [one for one in found if one.dtype == dtype and (one.m <= FEW_ROWS) == few]
            if part:
                tables.append(_table(f"{dtype}, M up to {FEW_ROWS}" if few else dtype, part))
    path.write_text(
        f"""# Lowest sparsity that beats dense

Written by `draw.py`: {results.provenance["gpu"]}, {made}.

Geometric mean over shapes of the fastest kernel's speedup over the
fastest dense layout of the same process and dtype; ln(speedup) is taken as linear in sparsity between what was measured,
and the crossing is rounded up to whole percent. "below" is the lowest sparsity measured, where dense has lost already;
"never" goes up to the highest that every shape has. Beside it, where the talk has the same granularity, its critical
sparsity (SC20, on a V100).

"""
        + "\n\n".join(tables)
        + "\n"
    )
    return path


def _table(title: str, found: Sequence[Crossover]) -> str:
    sizes = sorted({one.m for one in found})
    lines: dict[tuple, dict[int, Crossover]] = defaultdict(dict)
    for one in found:
        lines[one.weight, one.layout][one.m] = one
    compared = any(one.paper for one in found)
    header = ["weight", "layout", *(f"M = {m}" for m in sizes), *(["Tile-Wise talk, V100"] if compared else [])]
    table = [header, ["---"] * len(header)]
    for (weight, layout), by_m in lines.items():
        cells = [by_m[m].verdict if m in by_m else "" for m in sizes]
        paper = [next(iter(by_m.values())).paper] if compared else []
        table.append([f"{weight.label} ({weight.pattern})", layout.replace("_", "-"), *cells, *paper])
    shapes = "; ".join(f"M = {m}: {_counts(one.shapes for one in found if one.m == m)}" for m in sizes)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in table)
    return f"## {title}\n\nNumber of shapes: {shapes}.\n\n{text}"


def write_csv(found: Sequence[Crossover], path: Path) -> Path:
    """The same with numbers: one line for each weight, layout and M; `crossover` is empty where nothing crosses."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for one in found:
            ends = [value for at, log in (one.curve[0], one.curve[-1]) for value in (f"{at:g}", f"{exp(log):.4g}")]
            crossing = "" if one.sparsity is None else f"{one.sparsity:.4f}"
            writer.writerow(
                [*one.weight, one.dtype, one.layout, one.m, one.shapes, *ends, crossing, one.verdict, one.paper]
            )
    return path


def _between(curve: dict[float, float], at: float) -> float:
    """The piecewise linear curve at a place within it."""
    if at in curve:
        return curve[at]
    low, high = max(place for place in curve if place < at), min(place for place in curve if place > at)
    share = (at - low) / (high - low)
    return (1 - share) * curve[low] + share * curve[high]


def _place(one: Crossover) -> tuple:
    """Families together, coarse before fine."""
    family, pattern, granularity, distribution = one.weight
    return (family, pattern, -granularity, distribution, one.dtype, one.layout, one.m)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _counts(numbers: Iterable[int]) -> str:
    return " or ".join(str(number) for number in sorted(set(numbers)))
