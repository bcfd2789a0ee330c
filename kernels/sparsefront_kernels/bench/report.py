"""Summarize a run, and compare two result files."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from sparsefront_kernels.bench.rows import KEY, Row


def summary(rows: Iterable[Row]) -> str:
    """One line per kernel, dtype, layout, granularity, distribution, M and sparsity in percent; names wrong products."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    wrong = []
    for row in rows:
        if not row.correct:
            wrong.append(row)
        elif row.speedup is not None:
            sparsity = round(row.sparsity, 2)
            groups[row.kernel, row.dtype, row.layout, row.granularity, row.distribution, row.m, sparsity].append(row)
    lines = [
        f"{kernel:30} {dtype} {layout:13} g={granularity:<4} {distribution:8} m={m:<6} s={sparsity:<5} "
        f"x{_geomean([row.speedup for row in group]):.2f} over dense, "
        f"roofline {_geomean([row.roofline_fraction for row in group]):.2f}, {len(group)} shapes"
        for (kernel, dtype, layout, granularity, distribution, m, sparsity), group in sorted(groups.items())
    ]
    return "\n".join([*lines, *(f"WRONG: {row.kernel} {row.shape} error {row.relative_error:.2g}" for row in wrong)])


def _geomean(values: list[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


TOLERANCE = 0.05  # larger than differences between identical runs

Rows = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Change:
    """Relative latency of a measurement in both files, normalized to dense = 1 in each: above 1 is slower than before."""

    key: tuple[str, ...]
    ratio: float


def changes(before: Rows, after: Rows) -> list[Change]:
    """All measurements in both files, largest regression first.

    Compares speedups over dense instead of times, which also works across machines and clocks.
    """
    old, new = _speedups(before, after)
    comparisons = [Change(key, old[key] / new[key]) for key in old.keys() & new.keys()]
    return sorted(comparisons, key=lambda change: (-change.ratio, change.key))


def report(before: Rows, after: Rows) -> tuple[str, bool]:
    """The comparison as text, and whether anything got slower by more than the tolerance, wrong, or missing."""
    comparisons = changes(before, after)
    old, new = _speedups(before, after)
    lost = sorted(old.keys() - new.keys())
    lines = [f"slower x{one.ratio:.2f}: {_name(one.key)}" for one in comparisons if one.ratio > 1 + TOLERANCE]
    lines += [f"faster x{1 / one.ratio:.2f}: {_name(one.key)}" for one in comparisons if one.ratio < 1 - TOLERANCE]
    lines += [f"no longer measured: {_name(key)}" for key in lost]
    if comparisons:
        lines.append(
            f"{len(comparisons)} in both, geomean x{exp(sum(log(c.ratio) for c in comparisons) / len(comparisons)):.3f}"
        )
    else:
        lines.append("nothing is in both files")
    return "\n".join(lines), bool(lost) or any(change.ratio > 1 + TOLERANCE for change in comparisons)


def _speedups(*files: Rows) -> list[dict[tuple[str, ...], float]]:
    """For each file: measurement -> speedup.

    Random masks miss the requested sparsity by a different amount in each run, so measurements are identified by the
    requested one if all rows have it (older files do not).
    """
    asked = all(row["asked_sparsity"] for rows in files for row in rows)
    names = [("asked_sparsity" if asked and name == "sparsity" else name) for name in KEY]
    return [
        {tuple(row[name] for name in names): float(row["speedup"]) for row in rows if row["speedup"]} for rows in files
    ]


def _name(key: tuple[str, ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in zip(KEY, key, strict=True) if value)
