"""Reproduce the figures and the table of the uniform-sparsity paper with our kernels, next to the paper's numbers.

    python -m experiments.operators.uniform [uniform.csv] [-o DIR]

Reads the results of `uniform.plan`, writes uniform.svg into the same folder and prints the tables of the page. Speedups are over
cuSPARSE's CSR with the same mask in the same process; ours is the fastest of the family's kernels and layouts. Diamonds show the
same products with a newer kernel, from h200.csv. The paper's M, K and N are our N, K and M.

Source: Muralidharan, "Uniform Sparsity in Deep Neural Networks", 2023, section 4.3: figures 5 to 7 and table 1, fp32. Its text
gives a few values of the figures, which are the marks here. In table 1 a convolution counts as a product with its unrolled
inputs, with 128 columns for every weight of ResNet50, independent of the image size.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefront_kernels.bench.rows import read_rows

from experiments.harness import page
from experiments.harness.figures import new_figure, paper_style, save_svg, small_axes
from experiments.harness.page import geometric_mean
from sparsefront.results.plots import SERIES_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
NEWER = HERE / "h200.csv"
FAMILY, PEER, DTYPES = "ell", "cusparse_csr", ("fp32", "fp16")
USUAL_SPARSITY = 0.6
SMALL, LARGE = 128, 1024
BLOCKS, BLOCK_SPARSITIES = (1, 2, 4), (0.6, 0.95)


@dataclass(frozen=True)
class Cell:
    """One product: Y[M, N] = X[M, K] · W[N, K]ᵀ, W uniform."""

    dtype: str
    m: int
    k: int
    n: int
    sparsity: float
    block: int = 1


Speedups = dict[Cell, float]
"""Cell -> cuSPARSE's time over that of our fastest kernel."""


@dataclass(frozen=True)
class Line:
    """One line of a figure.

    Args:
        points: x -> cell.
        paper: x -> the paper's speedup in fp32, by its better kernel.
    """

    label: str
    points: dict[float, Cell]
    paper: dict[float, float]


@dataclass(frozen=True)
class Picture:
    """A figure of the paper; `log_x`: the x values are powers of two."""

    title: str
    x: str
    log_x: bool
    lines: tuple[Line, ...]


def figures(dtype: str) -> list[Picture]:
    """Figures 5 to 7 in one dtype; the paper's values are for fp32."""
    squares, ms = (128, 256, 512, 768, 1024), [128 * 2**power for power in range(8)]
    levels = (0.05, 0.2, 0.35, 0.5, 0.6, 0.65, 0.8, 0.95)
    is_published = dtype == "fp32"
    by_shape = [
        Line(f"M = {m}", {size: Cell(dtype, m, size, size, USUAL_SPARSITY) for size in squares}, {})
        for m in (SMALL, LARGE)
    ]
    by_sparsity = [
        Line(
            f"{size}³",
            {100 * level: Cell(dtype, size, size, size, level) for level in levels},
            paper if is_published else {},
        )
        for size, paper in ((SMALL, {60: 2.74, 95: 2.32}), (LARGE, {60: 1.50, 95: 3.29}))
    ]
    by_rows = Line(
        "K = N = 1024",
        {m: Cell(dtype, m, 1024, 1024, USUAL_SPARSITY) for m in ms},
        {16384: 1.62} if is_published else {},
    )
    return [
        Picture(f"Figure 5: shapes at 60 %, {dtype}", "K = N", False, tuple(by_shape)),
        Picture(f"Figure 6: sparsities, {dtype}", "sparsity, %", False, tuple(by_sparsity)),
        Picture(f"Figure 7: rows at 60 %, {dtype}", "M", True, (by_rows,)),
    ]


Size = tuple[int, int]
"""(K, N) of a weight."""


@dataclass(frozen=True)
class PaperNetwork:
    """A row of the table.

    Args:
        m: rows of X.
        sparsity: of every weight.
        weights: (K, N) -> number of weights.
        uspmm, uspmm_vec: speedup of the paper's two kernels over cuSPARSE's CSR, geometric mean over the weights.
    """

    name: str
    m: int
    sparsity: float
    weights: dict[Size, int]
    uspmm: float
    uspmm_vec: float


def table_1() -> list[PaperNetwork]:
    """The table's two networks."""
    return [
        PaperNetwork("Transformer-Big", 1024, 0.65, transformer_big(), uspmm=1.49, uspmm_vec=1.62),
        PaperNetwork("ResNet50", 128, 0.81, resnet50(), uspmm=1.31, uspmm_vec=1.01),
    ]


def transformer_big() -> dict[Size, int]:
    """Six encoder layers with one attention and six decoder layers with two, four weights each, and an MLP per layer."""
    return {(1024, 1024): 6 * 4 + 6 * 8, (1024, 4096): 12, (4096, 1024): 12}


def resnet50() -> dict[Size, int]:
    """All convolutions except the first, and the classifier."""
    from torch import nn
    from torchvision.models import resnet50

    layers = [module for module in resnet50().modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return dict(Counter(tuple(reversed(layer.weight.flatten(1).shape)) for layer in layers[1:]))


def read_speedups(path: Path) -> Speedups:
    """Speedups over cuSPARSE of correct products that were timed with it.

    Raises:
        ValueError: there are none.
    """
    best: Speedups = {}
    for row in read_rows(path):
        if row["family"] == FAMILY and row["correct"] == "True" and row["baseline"].startswith(PEER):
            sizes = (int(row[size]) for size in ("m", "k", "n"))
            cell = Cell(row["dtype"], *sizes, float(row["asked_sparsity"]), int(row["granularity"]))
            speedup = float(row["baseline_us"]) / float(row["latency_us"])
            best[cell] = max(speedup, best.get(cell, 0.0))
    if not best:
        raise ValueError(f"{path} has no right product of {FAMILY} beside {PEER}")
    return best


def network_speedup(network: PaperNetwork, dtype: str, speedups: Speedups) -> tuple[float | None, int]:
    """Geometric mean over the network's weights, weighted by count; and the number of sizes that are not measured.

    The mean is None until all are measured.
    """
    cells = {Cell(dtype, network.m, k, n, network.sparsity): count for (k, n), count in network.weights.items()}
    missing = sum(cell not in speedups for cell in cells)
    if missing:
        return None, missing
    return geometric_mean((speedups[cell] for cell in cells), list(cells.values())), 0


def markdown(speedups: Speedups) -> str:
    """Table 1, the figures' values in the paper's text, and blocks of neighboring inputs at 1024³."""
    head = ["network", "M", "sparsity", "USpMM", "USpMM-Vec", "ours, fp32", "ours, fp16"]
    networks = [
        [one.name, one.m, f"{one.sparsity:.0%}", f"{one.uspmm:.2f}", f"{one.uspmm_vec:.2f}"]
        + [_mean(*network_speedup(one, dtype, speedups)) for dtype in DTYPES]
        for one in table_1()
    ]
    values = []
    for picture in figures("fp32"):
        number, axis = picture.title.partition(":")[0][-1], picture.x.partition(",")[0]
        for line in picture.lines:
            for x, paper in line.paper.items():
                ours = _text(speedups.get(line.points[x]))
                values.append([number, line.label, f"{axis} {x:g}", f"{paper:.2f}", ours])
    columns = [(dtype, level) for dtype in DTYPES for level in BLOCK_SPARSITIES]
    blocks = [
        [block, *(_text(speedups.get(Cell(dtype, LARGE, LARGE, LARGE, level, block))) for dtype, level in columns)]
        for block in BLOCKS
    ]
    tables = [
        page.table(head, networks, rule=" --- |"),
        page.table(["figure", "line", "x", "the paper's better kernel", "ours, fp32"], values, rule=" --- |"),
        page.table(["block", *(f"{level:.0%}, {dtype}" for dtype, level in columns)], blocks, rule=" --- |"),
    ]
    return "\n\n".join("\n".join(lines) for lines in tables) + "\n"


def _text(speedup: float | None) -> str:
    return "not measured" if speedup is None else f"{speedup:.2f}"


def _mean(mean: float | None, missing: int) -> str:
    return f"{missing} sizes not measured" if mean is None else f"{mean:.2f}"


@paper_style
def draw_figures(speedups: Speedups, newer: Speedups, path: Path) -> Path:
    """A row of panels per dtype.

    Args:
        newer: speedups of products remeasured with a newer kernel.
    """
    rows = [figures(dtype) for dtype in DTYPES]
    figure = new_figure(sum(map(len, rows)), columns=len(rows[0]), height=2.4)
    for picture, axes in zip(chain(*rows), figure.axes, strict=True):
        _draw(axes, picture, speedups, newer)
    return save_svg(figure, path)


def _draw(axes: "Axes", picture: Picture, speedups: Speedups, newer: Speedups) -> None:
    for line, color in zip(picture.lines, SERIES_COLORS, strict=False):
        points = [(x, speedups[cell]) for x, cell in line.points.items() if cell in speedups]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker="o", label=line.label)
        again = [(x, newer[cell]) for x, cell in line.points.items() if cell in newer]
        if again:
            marks = {"marker": "D", "linestyle": "", "markersize": 4, "label": f"{line.label}, newer kernel"}
            axes.plot(*zip(*again, strict=True), color=color, markeredgecolor="black", **marks)
        if line.paper:
            marks = {"marker": "x", "linestyle": "", "markersize": 6, "label": f"{line.label}, the paper"}
            axes.plot(list(line.paper), list(line.paper.values()), color=color, **marks)
    axes.axhline(1.0, color="#555555", linewidth=0.8)
    axes.set_ylim(bottom=0)
    small_axes(
        axes, x=picture.x, y="over cuSPARSE's CSR", title=picture.title, powers_of_two="x" if picture.log_x else ""
    )
    if axes.lines[1:]:
        axes.legend(fontsize=5)


def all_cells() -> Iterable[Cell]:
    """Every product of the figures and the table."""
    for dtype in DTYPES:
        for picture in figures(dtype):
            for line in picture.lines:
                yield from line.points.values()
        for network in table_1():
            yield from (Cell(dtype, network.m, k, n, network.sparsity) for k, n in network.weights)
        for block in BLOCKS:
            yield from (Cell(dtype, LARGE, LARGE, LARGE, level, block) for level in BLOCK_SPARSITIES)


def main(arguments: Sequence[str]) -> int:
    """Write the files; returns the exit status: 0, or 1 with one message on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="?", default=HERE / "uniform.csv")
    parser.add_argument("-o", "--out", type=Path, help="folder of the files; by default that of the CSV")
    asked = parser.parse_args(arguments)
    folder = asked.out or asked.csv.parent
    try:
        speedups, newer = read_speedups(asked.csv), read_speedups(NEWER)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    draw_figures(speedups, newer, folder / "uniform.svg")
    print(markdown(speedups), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
