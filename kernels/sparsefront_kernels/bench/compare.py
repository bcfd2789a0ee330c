"""Two results files side by side: what became slower, what became faster."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log

from sparsefront_kernels.bench.row import KEY

TOLERANCE = 0.05  # runs differ by less than this on their own


@dataclass(frozen=True)
class Change:
    """Relative latency of a measurement that both files hold, dense = 1 in each: above 1 is slower than before."""

    key: tuple[str, ...]
    ratio: float


def changes(before: Iterable[dict[str, str]], after: Iterable[dict[str, str]]) -> list[Change]:
    """Every measurement that both hold, the one that lost most first.

    Speedups over dense are compared, not times: two machines, or two clocks, then still compare.
    """
    old, new = _speedups(before), _speedups(after)
    found = [Change(key, old[key] / new[key]) for key in old.keys() & new.keys()]
    return sorted(found, key=lambda change: (-change.ratio, change.key))


def report(before: list[dict[str, str]], after: list[dict[str, str]]) -> tuple[str, bool]:
    """The comparison as text, and whether anything became slower by more than the tolerance, or wrong, or is gone."""
    found = changes(before, after)
    lost = sorted(_speedups(before).keys() - _speedups(after).keys())
    lines = [f"slower x{one.ratio:.2f}: {_name(one.key)}" for one in found if one.ratio > 1 + TOLERANCE]
    lines += [f"faster x{1 / one.ratio:.2f}: {_name(one.key)}" for one in found if one.ratio < 1 - TOLERANCE]
    lines += [f"no longer measured: {_name(key)}" for key in lost]
    if found:
        lines.append(f"{len(found)} in both, geomean x{exp(sum(log(c.ratio) for c in found) / len(found)):.3f}")
    else:
        lines.append("nothing is in both files")
    return "\n".join(lines), bool(lost) or any(change.ratio > 1 + TOLERANCE for change in found)


def _speedups(rows: Iterable[dict[str, str]]) -> dict[tuple[str, ...], float]:
    return {tuple(row[name] for name in KEY): float(row["speedup"]) for row in rows if row["speedup"]}


def _name(key: tuple[str, ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in zip(KEY, key, strict=True) if value)
