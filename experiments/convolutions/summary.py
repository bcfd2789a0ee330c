"""The tables of the page, from the lines of the study.

python -m experiments.convolutions.summary [--write README.md]
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import page
from experiments.harness.page import geometric_mean, per_cent
from experiments.harness.rows import Row, read_lines, values_of

HERE = Path(__file__).resolve().parent
MARKS = "<!-- tables: made by summary.py -->", "<!-- end of tables -->"
ASKED = {"0.5": 1.05, "0.75": 1.25, "0.9": 1.4}  # geometric mean over the 1x1 convolutions, batch 128


def geomean(rows: list[Row], speedups: Sequence[float]) -> float:
    """Of a speedup of each row; each shape counts as often as the network has it."""
    return geometric_mean(speedups, [int(row["times"]) for row in rows])


def fastest_dense(rows: list[Row]) -> dict[tuple[str, ...], float]:
    """Convolution and batch -> the least microseconds of dense beside any of its sparsities."""
    fastest: dict[tuple[str, ...], float] = {}
    for row in rows:
        fastest[_shape(row)] = min(float(row["dense_us"]), fastest.get(_shape(row), math.inf))
    return fastest


def _shape(row: Row) -> tuple[str, ...]:
    return values_of(row, ("in_channels", "out_channels", "filter", "stride", "side", "times", "batch"))


def means(rows: list[Row]) -> list[str]:
    """Batch by batch and filter by filter: geometric means, wins and losses."""
    head = "batch|filter|sparsity|shapes|speedup|over its fastest dense|range|faster than dense|asked".split("|")
    lines = []
    fastest = fastest_dense(rows)
    groups = sorted({(-int(row["batch"]), row["filter"], row["sparsity"]) for row in rows})
    for batch, filter_size, sparsity in groups:
        same = (str(-batch), filter_size, sparsity)
        selected = [row for row in rows if values_of(row, ("batch", "filter", "sparsity")) == same]
        speedups = [float(row["speedup"]) for row in selected]
        mean = geomean(selected, speedups)
        least = geomean(selected, [fastest[_shape(row)] / float(row["latency_us"]) for row in selected])
        asked = ASKED.get(sparsity) if (filter_size, batch) == ("1", -128) else None
        verdict = "" if asked is None else f"{asked:g}, {'met' if mean >= asked else 'short'}"
        wins = sum(speedup > 1 for speedup in speedups)
        cells = [-batch, f"{filter_size}x{filter_size}", sparsity, len(selected), f"**{mean:.2f}**", f"{least:.2f}"]
        cells += [f"{min(speedups):.2f}–{max(speedups):.2f}", f"{wins} of {len(selected)}", verdict]
        lines.append(cells)
    return page.table(head, lines)


def shapes(rows: list[Row]) -> list[str]:
    """Every convolution at the largest batch: microseconds of both sides; each sparsity has a dense run of its own."""
    batch = max(int(row["batch"]) for row in rows)
    here = [row for row in rows if int(row["batch"]) == batch]
    levels = sorted({row["sparsity"] for row in here})
    head = ("convolution", "times", "dense us", *(f"sparse us at {float(level):.0%}" for level in levels))
    lines = []
    of_shape: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in here:
        of_shape.setdefault(_shape(row), {})[row["sparsity"]] = row
    for (inputs, outputs, size, stride, side, times, _), by_level in of_shape.items():
        name = f"{inputs}→{outputs}, {size}x{size}, {side}x{side} pixels" + (
            f", stride {stride}" if stride != "1" else ""
        )
        dense = [float(row["dense_us"]) for row in by_level.values()]
        ends = "–".join(dict.fromkeys(f"{end(dense):.1f}" for end in (min, max)))
        cells = [_cell(by_level[level]) if level in by_level else "" for level in levels]
        lines.append([name, times, ends, *cells])
    return [f"At {batch} images:", "", *page.table(head, lines)]


def _cell(row: Row) -> str:
    speedup = float(row["speedup"])
    mark, kernel = "**" if speedup > 1 else "", row["kernel"].removeprefix("blocked_")
    less = abs(float(row["density"]) - 1 + float(row["sparsity"])) > 0.02
    density = f", {per_cent(row['density'])} kept" if less else ""
    return f"{float(row['latency_us']):.1f} ({mark}{speedup:.2f}{mark}×, {kernel}{density})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=HERE / "h200.csv")
    parser.add_argument("--write", type=Path, help="a page, between its two marks")
    asked = parser.parse_args()
    rows = [row for row in read_lines(asked.rows) if row["kernel"]]
    text = "\n".join([*means(rows), "", *shapes(rows)])
    if asked.write is None:
        print(text)
    else:
        page.fill(asked.write, MARKS, text)


if __name__ == "__main__":
    main()
