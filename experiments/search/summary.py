"""The table of the page: what the search gives at each latency beside the best single pattern that is as fast.

python experiments/search/summary.py [rows.csv]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from points import SEARCH

from sparsefront.artifacts.csv_lines import read_lines

Row = dict[str, str]
NOT_SLOWER = 1.02  # a single pattern may take this much longer than the search and still stand beside it
HEAD = (
    "| speedup asked | seeds | search, ms | predicted, off by | accuracy | best single as fast | its accuracy | difference | "
    "dense trained on | part of the gap closed | search, s |"
)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: means over the seeds; differences are paired by seed, with the standard error where there are two."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    levels = sorted({float(row["level"]) for row in rows if row["choice"] == SEARCH})
    for level in levels:
        searched = [row for row in rows if row["choice"] == SEARCH and float(row["level"]) == level]
        lines.append(f"| {level:g} | {len(searched)} | {' | '.join(_cells(searched, rows))} |")
    return lines


def _cells(searched: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    latency = mean(float(row["latency_sparse_ms"]) for row in searched)
    off = mean(float(row["latency_predicted_ms"]) / float(row["latency_sparse_ms"]) - 1 for row in searched)
    accuracy = mean(map(_accuracy, searched))
    cells = [f"{latency:.3f}", f"{off:+.1%}", f"{accuracy:.2%}"]
    beside = [(row, single) for row in searched if (single := best_single(row, rows)) is not None]
    if beside:
        names = sorted({f"{single['choice']} at {single['level']}" for _, single in beside})
        differences = [100 * (_accuracy(row) - _accuracy(single)) for row, single in beside]
        error = f" ± {stdev(differences) / len(differences) ** 0.5:.2f}" if len(differences) > 1 else ""
        single_accuracy = mean(_accuracy(single) for _, single in beside)
        cells += [", ".join(names), f"{single_accuracy:.2%}", f"{mean(differences):+.2f}{error}"]
    else:
        cells += ["none", "–", "–"]
    continued = [float(row["dense_continued"]) for row in searched if row["dense_continued"]]
    cells += [f"{mean(continued):.2%}" if continued else "–", _closed(beside)]
    return [*cells, f"{mean(float(row['prune_seconds']) for row in searched):.0f}"]


def best_single(searched: Row, rows: Sequence[Row]) -> Row | None:
    """Of the same seed the most accurate single pattern, by held-out data, that is as fast; None where none is."""
    most = NOT_SLOWER * float(searched["latency_sparse_ms"])
    same = [row for row in rows if row["choice"] != SEARCH and row["seed"] == searched["seed"]]
    as_fast = [row for row in same if float(row["latency_sparse_ms"]) <= most]
    return max(as_fast, key=lambda row: float(row["val_sparse"] or row["sparse"]), default=None)


def _closed(beside: Sequence[tuple[Row, Row]]) -> str:
    """Of what the single pattern loses to dense trained on, the part that the search does not lose."""
    gaps = [
        (float(row["dense_continued"]) - _accuracy(single), _accuracy(row) - _accuracy(single))
        for row, single in beside
        if row["dense_continued"]
    ]
    lost = sum(gap for gap, _ in gaps)
    return f"{sum(gained for _, gained in gaps) / lost:.0%}" if lost > 0 else "–"


def _accuracy(row: Row) -> float:
    return float(row["sparse"])


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "rows.csv"
    print("\n".join(table(read_lines(path))))
