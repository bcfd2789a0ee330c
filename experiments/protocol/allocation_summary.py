"""The tables of the page, from the lines of the study.

python experiments/protocol/allocation_summary.py [allocation.csv]
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev

import allocation_points as points  # beside this file
from allocation_points import NETWORKS, VARIANTS, Point

from sparsefront.artifacts.csv_lines import read_lines

Rows = dict[Point, dict[str, str]]
HEAD = ("pattern", "sparsity", "allocation", "score", "seeds", "val", "− first", "test", "− first", "layers < 1 %")


def table(network: str, rows: Rows) -> list[str]:
    """Lines of Markdown: per variant the mean over the seeds in per cent, and the mean of the differences from the pattern's
    first variant with the same seed, in points, with its standard error where there are at least two; the most layers in
    any seed that keep less than 1 % of their weights.
    """
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    dense = [row for point, row in rows.items() if point.network == network and point.pattern == "dense"]
    if dense:
        val, test = (f"{100 * mean(float(row[key]) for row in dense):.2f}" for key in ("val_metric", "test_metric"))
        lines.append(f"| dense | | | | {len(dense)} | {val} | | {test} | | 0 |")
    of_seed: dict[tuple, dict[int, dict[str, str]]] = defaultdict(dict)
    for point, row in rows.items():
        if point.network == network and point.pattern != "dense":
            of_seed[point.pattern, point.sparsity, point.allocation, point.aggregate][point.seed] = row
    for pattern, variants in VARIANTS.items():
        for sparsity in sorted({found[1] for found in of_seed if found[0] == pattern}):
            first = of_seed.get((pattern, sparsity, *variants[0]), {})
            for variant in variants:
                if found := of_seed.get((pattern, sparsity, *variant)):
                    cells = [cell for key in ("val_metric", "test_metric") for cell in _compared(found, first, key)]
                    lost = max(int(row["layers_below"]) for row in found.values())
                    texts = (pattern, f"{sparsity:g}", *variant, str(len(found)), *cells, str(lost))
                    lines.append(f"| {' | '.join(texts)} |")
    return lines


def _compared(found: dict[int, dict[str, str]], first: dict[int, dict[str, str]], metric: str) -> tuple[str, str]:
    """A variant's mean, and its differences from the first variant, seed by seed."""
    average = f"{100 * mean(float(row[metric]) for row in found.values()):.2f}"
    paired = [100 * (float(row[metric]) - float(first[seed][metric])) for seed, row in found.items() if seed in first]
    if not paired or found is first:
        return average, "–"
    error = f" ± {stdev(paired) / len(paired) ** 0.5:.2f}" if len(paired) > 1 else ""
    return average, f"{mean(paired):+.2f}{error}"


def missing(rows: Rows) -> list[str]:
    """One line per network: how many of its points have no line yet."""
    lines = []
    for network in NETWORKS:
        wanted = list(points.all_points(network))
        left = [point for point in wanted if point not in rows]
        seeds = f" (seeds {', '.join(map(str, sorted({point.seed for point in left})))})" if left else ""
        lines.append(f"{network}: {len(left)} of {len(wanted)} points are missing{seeds}")
    return lines


def report(rows: Iterable[dict[str, str]]) -> Sequence[str]:
    """The tables of all networks that have lines, and what is missing."""
    of_point = {points.point_of(row): row for row in rows}
    lines: list[str] = []
    for network in NETWORKS:
        if any(point.network == network for point in of_point):
            lines += [f"### {network}", "", *table(network, of_point), ""]
    return [*lines, *missing(of_point)]


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "allocation.csv"
    print("\n".join(report(read_lines(path))))
