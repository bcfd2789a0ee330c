"""The table of the page, from the lines of the study.

python experiments/tile_wise_hardware/summary.py [rows.csv]
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import points  # beside this file

from sparsefront.artifacts.csv_lines import read_lines

Group = tuple[str, str, str]  # granularity, allocation, sparsity
METRICS = ("val_metric", "dev_metric")


def table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Lines of Markdown: per setting and variant the mean over the seeds in per cent, and the mean of the differences from
    the sources' variant of the same seed, in points, with its standard error where there are at least two seeds.
    """
    of_seed: dict[Group, dict[str, dict[str, dict[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        of_seed[row["granularity"], row["allocation"], row["sparsity"]][row["variant"]][row["seed"]] = row
    lines = [
        "| g | allocation | sparsity | variant | seeds | val | − sources | dev | − sources | least dense layer | longest tile |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group, variants in of_seed.items():
        for variant in ("dense", *points.VARIANTS):
            if variant in variants:
                found = variants[variant]
                judged = [cell for metric in METRICS for cell in _judged(found, variants.get("sources", {}), metric)]
                least = min(float(row["min_layer_density"]) for row in found.values())
                longest = mean(float(row["longest_tile"]) for row in found.values())
                cells = [*group, variant, str(len(found)), *judged, f"{least:.3f}", f"{longest:.2f}"]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _judged(found: dict[str, dict[str, str]], sources: dict[str, dict[str, str]], metric: str) -> tuple[str, str]:
    """A variant's mean over its seeds, and its differences from the sources' variant, seed by seed."""
    average = f"{100 * mean(float(row[metric]) for row in found.values()):.2f}"
    paired = [
        100 * (float(row[metric]) - float(sources[seed][metric])) for seed, row in found.items() if seed in sources
    ]
    if not paired or found is sources:
        return average, "–"
    error = f" ± {stdev(paired) / len(paired) ** 0.5:.2f}" if len(paired) > 1 else ""
    return average, f"{mean(paired):+.2f}{error}"


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "rows.csv"
    print("\n".join(table(read_lines(path))))
