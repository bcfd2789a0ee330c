"""The tables of the page: every choice, and what the search gives at each latency beside the best single pattern that is as fast.

python experiments/search/summary.py [rows.csv ...]
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
    "| speedup asked | seeds | search, ms | predicted, off by | test | best single as fast | its test | difference (95 %) | "
    "dense trained on | part of the gap closed | search, s |"
)


def all_choices(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown, by latency: means over the seeds, with the standard deviation where there are two."""
    head = (
        "choice",
        "level",
        "seeds",
        "latency, ms",
        "speedup",
        "held out",
        "− dense trained on",
        "test",
        "− dense trained on",
    )
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    same: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        same.setdefault((row["choice"], row["level"]), []).append(row)
    for (choice, level), of_level in sorted(same.items(), key=lambda entry: _mean(entry[1], "latency_sparse_ms")):
        cells = [choice, level, str(len(of_level)), f"{_mean(of_level, 'latency_sparse_ms'):.3f}"]
        cells.append(f"{_mean(of_level, 'speedup'):.2f}")
        for split in ("val_", ""):
            accuracies = [100 * float(row[f"{split}sparse"]) for row in of_level]
            spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
            lost = 100 * (_mean(of_level, f"{split}sparse") - _mean(of_level, f"{split}dense_continued"))
            cells += [f"{mean(accuracies):.2f} %{spread}", f"{lost:+.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _mean(rows: Sequence[Row], name: str) -> float:
    return mean(float(row[name]) for row in rows)


def table(rows: Sequence[Row], pairs: Sequence[Row] = ()) -> list[str]:
    """Lines of Markdown: means over the seeds; off by how much the prediction was of the seeds between which all lie.

    Args:
        pairs: lines of `pairs.py`, whose intervals stand with the differences.
    """
    intervals = {float(pair["level"]): [100 * float(pair[end]) for end in ("low", "high")] for pair in pairs}
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    levels = sorted({float(row["level"]) for row in rows if row["choice"] == SEARCH})
    for level in levels:
        searched = [row for row in rows if row["choice"] == SEARCH and float(row["level"]) == level]
        lines.append(f"| {level:g} | {len(searched)} | {' | '.join(_cells(searched, rows, intervals.get(level)))} |")
    return lines


def _cells(searched: Sequence[Row], rows: Sequence[Row], interval: Sequence[float] | None) -> list[str]:
    latency = mean(float(row["latency_sparse_ms"]) for row in searched)
    off = sorted(float(row["latency_predicted_ms"]) / float(row["latency_sparse_ms"]) - 1 for row in searched)
    between = " to ".join(dict.fromkeys(f"{share:+.1%}" for share in (off[0], off[-1])))
    accuracy = mean(map(_accuracy, searched))
    cells = [f"{latency:.3f}", between, f"{accuracy:.2%}"]
    beside = [(row, single) for row in searched if (single := best_single(row, rows)) is not None]
    if beside:
        names = sorted({f"{single['choice']} at {single['level']}" for _, single in beside})
        differences = [100 * (_accuracy(row) - _accuracy(single)) for row, single in beside]
        single_accuracy = mean(_accuracy(single) for _, single in beside)
        ends = f" ({interval[0]:+.2f} to {interval[1]:+.2f})" if interval else ""
        cells += [", ".join(names), f"{single_accuracy:.2%}", f"{mean(differences):+.2f}{ends}"]
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
    for path in map(Path, sys.argv[1:] or [Path(__file__).resolve().parent / "rows.csv"]):
        found, pairs = read_lines(path), read_lines(path.with_suffix(".pairs.csv"))
        print("\n".join([path.stem, "", *all_choices(found), "", *table(found, pairs), ""]))
