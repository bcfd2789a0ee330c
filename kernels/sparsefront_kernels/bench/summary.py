"""A run in a few lines: geometric means over the shapes, per kernel, granularity, sparsity and M."""

from collections import defaultdict
from collections.abc import Iterable
from math import exp, log

from sparsefront_kernels.bench.row import Row


def summary(rows: Iterable[Row]) -> str:
    """One line per kernel, dtype, layout, granularity, distribution, M and sparsity in percent; wrong products are named."""
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
        f"x{_geomean([row.speedup for row in found]):.2f} over dense, "
        f"roofline {_geomean([row.roofline_fraction for row in found]):.2f}, {len(found)} shapes"
        for (kernel, dtype, layout, granularity, distribution, m, sparsity), found in sorted(groups.items())
    ]
    return "\n".join([*lines, *(f"WRONG: {row.kernel} {row.shape} error {row.relative_error:.2g}" for row in wrong)])


def _geomean(values: list[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))
