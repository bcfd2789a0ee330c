"""What the search gains over the best single pattern that is as fast, on the same samples of test: a paired bootstrap.

    python -m experiments.search.pairs results/search --rows experiments/search/minilm.csv

Reads what each run answered to each sample from the runs' folders, and writes minilm.pairs.csv beside the rows: a line for
each speedup that was searched for. `summary.py` puts them into its table.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.search.points import SEARCH
from experiments.search.summary import Row, best_single
from sparsefront.results.statistics import paired_difference
from sparsefront.results.store import read_lines, read_results
from sparsefront.tasks.outcomes import Outcomes

COLUMNS = ("level", "seeds", "difference", "low", "high")


def pairs_file(rows: Path) -> Path:
    return rows.with_suffix(".pairs.csv")


def pairs(rows: Sequence[Row], outcomes_of: Callable[[str], Outcomes | None]) -> list[dict[str, str]]:
    """A line for each speedup that was searched for, where each of its seeds has a single pattern as fast and both have outcomes.

    Args:
        outcomes_of: gives those of the sparse network of a run, by `run_id`; None where they are not kept.
    Returns:
        accuracy of the search minus that of the single pattern, and the ends of its 95 % interval, as fractions.
    """
    lines = []
    for level in sorted({row["level"] for row in rows if row["choice"] == SEARCH}, key=float):
        searched = [row for row in rows if (row["choice"], row["level"]) == (SEARCH, level)]
        singles = [best_single(row, rows) for row in searched]
        if None in singles:
            continue
        ours, theirs = ([outcomes_of(row["run_id"]) for row in side] for side in (searched, singles))
        if any(outcomes is None for outcomes in (*ours, *theirs)):
            continue
        found = paired_difference(ours, theirs, same_seeds=True)
        values = (level, len(searched), *(f"{value:.6g}" for value in (found.value, found.low, found.high)))
        lines.append(dict(zip(COLUMNS, map(str, values), strict=True)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="folders of the runs")
    parser.add_argument("--rows", type=Path, required=True, help="lines of the study")
    arguments = parser.parse_args()
    reading = read_results(arguments.results)
    results = {result.identity.run_id: result for result in reading.results}

    def outcomes_of(run_id: str) -> Outcomes | None:
        found = reading.outcomes_of(results[run_id]) if run_id in results else None
        if found is None:
            folders = ", ".join(map(str, arguments.results))
            print(f"run {run_id}: no folder with its outcomes below {folders}; its speedup gets no interval")
            return None
        return found["sparse"]

    found = pairs(read_lines(arguments.rows), outcomes_of)
    with pairs_file(arguments.rows).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
