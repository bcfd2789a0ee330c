"""The picture of the study: speedup of whole networks over the fastest dense version, by pattern and sparsity.

PYTHONPATH=src:kernels python -m experiments.end_to_end.draw
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from sparsefront.results.plots import DENSE_COLOR, pattern_color
from sparsefront.results.store import read_lines

PATTERNS = ("tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense")  # in the order of the legend
HERE = Path(__file__).resolve().parent
PLACES = (("bert_large", "32", "384"), ("bert_base", "128", "128"), ("vit_l_16", "256", ""))
TITLES = {"bert_large": "BERT-large, 32 × 384", "bert_base": "BERT-base, 128 × 128", "vit_l_16": "ViT-L/16, 256 images"}
LIMITS = ("speedup_low", "speedup_high")
Row = dict[str, str]


def shown(rows: Iterable[Row]) -> list[Row]:
    """Rows of the best kernels with the default settings of each pattern: 2:4 in both 16-bit types, others in fp16."""
    return [
        row
        for row in rows
        if (row["kernel_mode"], row["allocation"], row["pattern_settings"]) == ("auto", "per_layer", "")
        and (row["dtype"] == "fp16" or row["pattern"] == "n_m")
    ]


def series_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """(pattern, label) -> its rows by sparsity."""
    series: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: float(row["sparsity"])):
        detail = row["granularity"] if row["pattern"] != "n_m" else f"2:{row['group_m']} {row['dtype']}"
        series.setdefault((row["pattern"], f"{row['pattern']} {detail}"), []).append(row)
    return dict(sorted(series.items(), key=lambda item: PATTERNS.index(item[0][0])))


def draw(axes: Axes, rows: Sequence[Row]) -> None:
    """One network: a line for each pattern and granularity, its 95 % intervals, and the dense version at 1."""
    for (pattern, label), points in series_of(rows).items():
        color = pattern_color(pattern)
        speedups = [float(row["speedup"]) for row in points]
        below, above = ([abs(float(row[end]) - float(row["speedup"])) for row in points] for end in LIMITS)
        dashed = label.endswith((" 64", "bf16")) and pattern != "block_wise"
        axes.errorbar(
            [100 * float(row["sparsity"]) for row in points],
            speedups,
            yerr=[below, above],
            color=color,
            marker="o",
            linestyle="--" if dashed else "-",
            markerfacecolor="white" if dashed else color,
            capsize=2,
            label=label,
        )
    axes.axhline(1.0, color=DENSE_COLOR, linewidth=1.2, linestyle=":")
    axes.grid(alpha=0.25)
    axes.set_xlabel("sparsity of the pruned layers, %")
    axes.legend(fontsize=8, loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=HERE / "h200.csv")
    parser.add_argument("--output", type=Path, default=HERE / "speedup.png")
    asked = parser.parse_args()
    rows = shown(read_lines(asked.rows))
    figure, panels = plt.subplots(1, len(PLACES), figsize=(12, 4), sharey=True, constrained_layout=True)
    for axes, place in zip(panels, PLACES, strict=True):
        there = [row for row in rows if (row["model"], row["batch"], row["sequence_length"]) == place]
        draw(axes, there)
        dense = sorted(float(row["dense_latency_ms"]) for row in there)
        axes.set_title(f"{TITLES[place[0]]} (dense {dense[len(dense) // 2]:.1f} ms)", fontsize=10)
    panels[0].set_ylabel("speedup over the fastest dense version")
    made_with = "; ".join(sorted({f"{row['gpu']}, torch {row['torch']}, {row['date']}" for row in rows}))
    figure.suptitle(f"{made_with}; fp16 unless said, kernel=auto, random weights, masks of the patterns", fontsize=9)
    figure.savefig(asked.output, dpi=110)


if __name__ == "__main__":
    main()
