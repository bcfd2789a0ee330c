"""The front that the search finds beside those of the single patterns: accuracy against latency, means over the seeds.

python experiments/search/draw.py [rows.csv]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure
from points import SEARCH

from sparsefront.artifacts.csv_lines import read_lines

HERE = Path(__file__).resolve().parent
Place = tuple[float, float]


def series(rows: Sequence[dict[str, str]]) -> dict[str, list[Place]]:
    """Choice -> (latency in ms, accuracy) of each level, mean over the seeds, by latency; the search first."""
    found: dict[str, list[Place]] = {}
    for choice in sorted({row["choice"] for row in rows}, key=lambda name: (name != SEARCH, name)):
        levels = sorted({row["level"] for row in rows if row["choice"] == choice}, key=float)
        places = []
        for level in levels:
            same = [row for row in rows if (row["choice"], row["level"]) == (choice, level)]
            latency, accuracy = (mean(float(row[name]) for row in same) for name in ("latency_sparse_ms", "sparse"))
            places.append((latency, accuracy))
        found[choice] = sorted(places)
    return found


def front(places: Sequence[Place]) -> list[Place]:
    """Those that no other is both faster and more accurate than, by latency."""
    best, kept = float("-inf"), []
    for latency, accuracy in sorted(places, key=lambda place: (place[0], -place[1])):
        if accuracy > best:
            kept.append((latency, accuracy))
            best = accuracy
    return kept


def draw(rows: Sequence[dict[str, str]], out: Path) -> None:
    """Write the picture."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for choice, places in series(rows).items():
        strong = choice == SEARCH
        dots = axes.scatter(*zip(*places, strict=True), s=40 if strong else 22, zorder=3 if strong else 2, label=choice)
        steps = front(places)
        axes.plot(*zip(*steps, strict=True), color=dots.get_facecolor()[0], linewidth=2 if strong else 1)
    for name, label, style in (("dense", "dense", "-"), ("dense_continued", "dense, trained on", "--")):
        values = [float(row[name]) for row in rows if row[name]]
        if values:
            axes.axhline(mean(values), color="#888888", linestyle=style, linewidth=1, label=label)
    axes.set_xlabel("latency of a batch, ms")
    axes.set_ylabel(rows[0]["metric_name"])
    axes.legend(fontsize=8)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "rows.csv"
    draw(read_lines(path), path.with_name("fronts.png"))
