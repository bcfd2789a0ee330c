"""Draw the search and the single patterns: accuracy by latency, means over seeds, and the Pareto front.

python -m experiments.search.draw [rows.csv ...]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from matplotlib.axes import Axes

from experiments.harness.figures import new_figure, save_png
from experiments.harness.rows import Row
from experiments.search.study import SEARCH
from sparsefront.results.plots import DENSE_COLOR, FRONT_COLOR, pattern_color
from sparsefront.results.store import read_lines

HELD_OUT = "val_"
SPLITS = {HELD_OUT: "held-out part of train, which decides", "": "test, which is reported"}
SPARSE_METRIC = "sparse"
FRONT = "front, picked on held-out data"


class Place(NamedTuple):
    """Latency in ms, accuracy with its error (of the samples or over the seeds, the larger one), and held-out accuracy, which
    selects fronts.
    """

    latency: float
    accuracy: float
    error: float
    held_out: float


def series(rows: Sequence[Row], split: str = "") -> dict[str, list[Place]]:
    """Choice -> its levels by latency, the search first.

    Args:
        split: prefix of the metrics, `val_` or "".
    """
    found: dict[str, list[Place]] = {}
    for choice in sorted({row["choice"] for row in rows}, key=lambda name: (name != SEARCH, name)):
        levels = sorted({row["level"] for row in rows if row["choice"] == choice}, key=float)
        same = ([row for row in rows if (row["choice"], row["level"]) == (choice, level)] for level in levels)
        found[choice] = sorted(_place(of_level, split) for of_level in same)
    return found


def _place(rows: Sequence[Row], split: str) -> Place:
    accuracies, held_out = ([float(row[name + SPARSE_METRIC]) for row in rows] for name in (split, HELD_OUT))
    errors = [float(row.get(f"{split}{SPARSE_METRIC}_standard_error") or 0) for row in rows]
    deviation = stdev(accuracies) if len(accuracies) > 1 else 0.0
    latency = mean(float(row["latency_sparse_ms"]) for row in rows)
    return Place(latency, mean(accuracies), max(mean(errors), deviation), mean(held_out))


def front(places: Sequence[Place]) -> list[Place]:
    """The Pareto front by latency and held-out accuracy; test accuracy selects nothing."""
    best, kept = float("-inf"), []
    for place in sorted(places, key=lambda place: (place.latency, -place.held_out)):
        if place.held_out > best:
            kept.append(place)
            best = place.held_out
    return kept


def over_seeds(rows: Sequence[Row], name: str) -> float | None:
    """Mean over seeds of a dense network's column, which all rows of a seed share; None if no row has it."""
    of_seed: dict[str, list[float]] = {}
    for row in rows:
        if row.get(name):
            of_seed.setdefault(row["seed"], []).append(float(row[name]))
    return mean(map(mean, of_seed.values())) if of_seed else None


def draw(rows: Sequence[Row], out: Path) -> None:
    """Write the plot: a panel for the held-out split, which selects, and one for test, which is reported."""
    figure = new_figure(12, 4.6, dpi=110)
    for axes, (split, title) in zip(figure.subplots(1, len(SPLITS)), SPLITS.items(), strict=True):
        _panel(axes, rows, split)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("latency of a batch, ms")
        axes.set_ylabel(f"{rows[0]['metric_name']}, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    save_png(figure, out)


def _panel(axes: Axes, rows: Sequence[Row], split: str) -> None:
    found = series(rows, split)
    for choice, places in found.items():
        latency, accuracy, error, _ = zip(*places, strict=True)
        style = {"color": pattern_color("mixed" if choice == SEARCH else choice.partition(":")[0]), "capsize": 2}
        per_cent = [100 * value for value in accuracy]
        axes.errorbar(
            latency, per_cent, [100 * value for value in error], marker="o", linewidth=1, label=choice, **style
        )
    best = front([place for places in found.values() for place in places])
    steps = {"where": "post", "color": FRONT_COLOR, "linestyle": "--", "zorder": 0}
    axes.step([place.latency for place in best], [100 * place.accuracy for place in best], label=FRONT, **steps)
    dense_ms = over_seeds(rows, "latency_dense_ms")
    for name, label, face in (("dense", "dense", DENSE_COLOR), ("dense_continued", "continued dense", "none")):
        if (value := over_seeds(rows, split + name)) is not None:
            star = {"marker": "*", "s": 130, "facecolors": face, "edgecolors": DENSE_COLOR, "zorder": 3}
            axes.scatter([dense_ms], [100 * value], label=label, **star)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "rows", type=Path, nargs="*", default=[Path("results/search/rows.csv")], help="lines of the study"
    )
    for path in parser.parse_args().rows:
        draw(read_lines(path), path.with_suffix(".png"))
