"""The tables and the figure of the page: products and networks in fp8 against dense fp8 and fp16.

    python -m experiments.low_precision.summary [--folder experiments/low_precision]

Reads networks.csv, large.csv, operators.csv and peers.csv of the folder, prints a table of each and writes networks.png.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from sparsefront_kernels.semi_structured import torchao

from experiments.harness import page
from experiments.harness.figures import new_figure, save_png
from experiments.harness.rows import Row
from experiments.low_precision import operators
from sparsefront.results.plots import series_styles
from sparsefront.results.store import read_lines

HERE = Path(__file__).parent
FP8_NETWORK, SIXTEEN = "fp8", "none"
DENSE = (operators.ROWWISE, operators.TENSORWISE)
KERNELS_2_4 = {
    "semi_structured_fp8": "sums without scales",
    "semi_structured_fp8_scaled": "and a pass that scales them",
    torchao.KERNEL: "a scale for each row and output",
}


def network_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown."""
    head = ("network", "pruned", "asked", "ran", "ms", "over dense fp16", "over dense fp8", "F1, fp16", "F1, as it ran")
    cells = []
    for row in rows:
        dense = row["choice"] == "dense"
        over_low = "1" if dense else f"{float(row['speedup_low_precision']):.2f}"
        before = row["dense"] if dense else row["masked"]
        cells.append(
            [
                row["choice"],
                "" if dense else page.per_cent(row["level"]),
                "fp8" if row["asked"] == FP8_NETWORK else "16 bits",
                row["precision"],
                f"{float(row['latency_sparse_ms']):.2f}",
                page.speedup(row),
                over_low,
                *(f"{100 * float(value):.2f}" for value in (before, row["sparse"])),
            ]
        )
    return page.table(head, cells)


def large_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown."""
    head = (
        "network",
        "blocks",
        "sparsity",
        "dense fp16, ms",
        "dense fp8",
        "blocks, fp8",
        "over dense fp16",
        "over dense fp8",
    )
    cells = [
        [
            f"{row['model']} {row['batch']}" + f"×{row['sequence_length']}" * bool(row["sequence_length"]),
            row["granularity"],
            page.per_cent(row["sparsity"]),
            *(f"{float(row[f'latency_{side}_ms']):.2f}" for side in ("dense", "dense_low", "sparse")),
            page.speedup(row),
            f"{float(row['speedup_low_precision']):.2f}",
        ]
        for row in rows
    ]
    return page.table(head, cells)


def peers_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: each 2:4 kernel over the faster dense e4m3 product of its file, at each size."""
    times: dict[tuple[tuple[str, str], str, str], float] = {}
    for row in rows:  # of several runs the fastest counts, on every side
        key = ((row["k"], row["n"]), row["kernel"], row["notes"])
        times[key] = min(float(row["latency_us"]), times.get(key, math.inf))
    sizes = list(dict.fromkeys(size for size, *_ in times))
    cells = []
    for kernel, note in dict.fromkeys((kernel, note) for _, kernel, note in times if kernel in KERNELS_2_4):
        dense = [min(time for (at, one, _), time in times.items() if at == size and one in DENSE) for size in sizes]
        ratios = [f"{most / times[size, kernel, note]:.2f}" for size, most in zip(sizes, dense, strict=True)]
        cells.append([KERNELS_2_4[kernel], note, *ratios])
    return page.table(("2:4 in e4m3", "kernel", *("→".join(size) for size in sizes)), cells)


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Speedup over dense fp16 of each network in 16 bits and, beside it, as asked for in fp8."""
    figure = new_figure(7.0, 3.6)
    axes = figure.add_subplot()
    networks = dict.fromkeys((row["choice"], row["level"]) for row in rows)
    styles = series_styles(dict.fromkeys(choice for choice, _ in networks))
    for place, (choice, level) in enumerate(networks):
        for offset, asked in ((-0.2, SIXTEEN), (0.2, FP8_NETWORK)):
            found = [row for row in rows if (row["choice"], row["level"], row["asked"]) == (choice, level, asked)]
            height = float(found[0]["speedup"]) if found else 1.0  # dense in 16 bits
            in_low = asked == FP8_NETWORK
            axes.bar(
                place + offset,
                height,
                0.38,
                color=styles[choice].color,
                hatch="//" if in_low else "",
                edgecolor="white" if in_low else styles[choice].color,
            )
            axes.text(place + offset, height + 0.01, f"{height:.2f}", ha="center", fontsize=8)
    names = [choice if choice == "dense" else f"{choice}\n{float(level):.0%}" for choice, level in networks]
    axes.set_xticks(range(len(networks)), names, fontsize=8)
    axes.set_ylim(0.8)
    axes.set_ylabel("times as fast as the fastest dense fp16")
    axes.set_title("plain: 16 bits, hatched: asked for in fp8", fontsize=9)
    return save_png(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=HERE)
    folder = parser.parse_args().folder
    tables = {"networks": network_table, "large": large_table, "operators": operators.table, "peers": peers_table}
    for name, table in tables.items():
        print(*table(read_lines(folder / f"{name}.csv")), "", sep="\n")
    networks = read_lines(folder / "networks.csv")
    draw(networks, folder / "networks.png")


if __name__ == "__main__":
    main()
