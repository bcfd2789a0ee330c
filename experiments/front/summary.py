"""The tables and the figure of the front, from its packed records.

    python -m experiments.front.summary --write

The page holds the tables of `compare.py experiments/records/front`, as that prints them; README's table has the timed lines
alone. There a network counts in the faster of fp16 and bf16, against the faster dense network of both. Where the trained network
was not timed, masks of the same pattern and sparsity are, made in one step and not recovered.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from experiments.harness import page
from experiments.harness.figures import MARKERS, new_figure, paper_style, save_svg, small_axes
from sparsefront.results.candidates import Candidate, mean_and_deviation, points_lost, smaller_first
from sparsefront.results.comparable import ComparableResults, split_comparable
from sparsefront.results.plots import pattern_color
from sparsefront.results.record import Result
from sparsefront.results.statistics import candidate_table, loss_of
from sparsefront.results.store import read_results

FRONT = Path(__file__).resolve().parent
RECORDS, PAGE, README = FRONT.parent / "records" / "front", FRONT / "README.md", FRONT.parents[1] / "README.md"
MARKS = ("<!-- as compare.py prints it -->", "<!-- end of the tables -->")
MARKS_OF_README = ("<!-- front -->", "<!-- end of front -->")
NAMES = {
    "channel": "narrower dense network (`channel`, `axis=width`)",
    "depth": "fewer layers (`depth`)",
    "block_wise": "blocks of {} (`block_wise`)",
    "tile_wise": "tiles of {} (`tile_wise`)",
    "vector_wise": "vectors of {} (`vector_wise`)",
}


def groups_of(records: Sequence[Path]) -> list[ComparableResults]:
    """As `compare.py` shows them. Raises ValueError if a record cannot be read."""
    reading = read_results(records)
    if reading.problems or not reading.results:
        raise ValueError("; ".join(reading.problems) or f"no records in {', '.join(map(str, records))}")
    return split_comparable(reading.results)


def tables(groups: Sequence[ComparableResults]) -> Iterator[str]:
    """Lines of Markdown: the table of candidates of each group."""
    for group in groups:
        lines = candidate_table(group.candidates)
        if lines:
            yield from (f"{group.title}:", "", *page.table(list(lines[0]), [line.values() for line in lines]), "")


@dataclass(frozen=True)
class Timed:
    """A trained candidate with its fastest timed network.

    Args:
        run: the timed one, of the same pattern and sparsity.
        speedup, low, high: on the evaluation's own batches, over the faster dense network of fp16 and bf16.
    """

    candidate: Candidate
    run: Result
    speedup: float
    low: float
    high: float


def timed_of(groups: Sequence[ComparableResults]) -> list[Timed]:
    """The candidates of the first group for which anything was timed, in the order of its table."""
    others = [result for group in groups for result in group.results if result.speed.speedup_dataset is not None]
    timings = []
    for candidate in groups[0].candidates:
        alike = [run for run in others if _structure(run) == _structure(candidate.results[0])]
        trained = [run for run in alike if run.choice.recovery != "none"]
        if not alike:
            continue
        run = min(trained or alike, key=lambda run: run.speed.latency_sparse_dataset_ms)
        dense = min(one.speed.latency_dense_dataset_ms for one in alike)
        faster = dense / run.speed.latency_dense_dataset_ms
        ends = (run.speed.speedup_dataset, run.speed.speedup_dataset_low, run.speed.speedup_dataset_high)
        timings.append(Timed(candidate, run, *(faster * end for end in ends)))
    return timings


def _structure(result: Result) -> tuple[object, ...]:
    choice, sparsity = result.choice, result.sparsity
    place = smaller_first(result), choice.pattern, choice.granularity, sparsity.n_of_m, sparsity.sparsity_target
    return *place, result.speed.precision in _LOW


_LOW = ("fp8", "fp8_static", "int8")


def readme_table(groups: Sequence[ComparableResults]) -> list[str]:
    """Lines of Markdown."""
    head = ("choice", "pruned", "dtype", "speedup (95 %)", "F1", "lost (95 %)", "seeds")
    cells = []
    for one in sorted(timed_of(groups), key=lambda one: (_name(one.candidate), one.candidate.sparsity)):
        loss = loss_of(one.candidate, held_out=False)
        mark = "" if one.run.choice.recovery != "none" else " †"
        speedup = f"**{one.speedup:.2f}**{mark} ({one.low:.2f}–{one.high:.2f})"
        lost = f"{loss.mean:.2f} (≤ {loss.high:.2f})"
        quality = page.spread([100 * value for value in one.candidate.test])
        place = (_name(one.candidate), f"{one.candidate.sparsity:g}", one.run.speed.dtype)
        cells.append((*place, speedup, quality, lost, len(one.candidate.results)))
    return page.table(head, cells)


def _name(candidate: Candidate) -> str:
    first = candidate.results[0]
    name = NAMES.get(first.choice.pattern, first.sparsity.n_of_m or candidate.pattern)
    return name.format(first.choice.granularity)


@paper_style
def draw(groups: Sequence[ComparableResults], path: Path) -> Path:
    """Loss against speedup of README's lines, a curve for each choice; bars are the standard deviation over seeds."""
    figure = new_figure()
    axes, lines = figure.axes[0], timed_of(groups)
    for place, name in enumerate(dict.fromkeys(_name(one.candidate) for one in lines)):
        points = sorted((one for one in lines if _name(one.candidate) == name), key=lambda one: one.speedup)
        color = pattern_color(points[0].run.choice.pattern)
        lost = [[-points_lost(run) for run in one.candidate.results] for one in points]
        x, y = [one.speedup for one in points], [fmean(values) for values in lost]
        spread = [mean_and_deviation(values)[1] or 0.0 for values in lost]
        axes.errorbar(x, y, yerr=spread, color=color, marker=MARKERS[place % len(MARKERS)], label=name.replace("`", ""))
        for one, *place in zip(points, x, y, strict=True):
            text = f"{one.candidate.sparsity:.0%}"
            axes.annotate(text, place, textcoords="offset points", xytext=(6, 5))
    axes.plot([1], [0], marker="*", markersize=10, color="black", linestyle="", label="dense")
    x = "speedup over the fastest dense version, on the evaluation's own batches"
    axes.margins(0.12)
    small_axes(axes, x=x, y="ΔF1 against dense, same teacher")
    axes.legend()
    return save_svg(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, nargs="+", default=[RECORDS], help="of the runs, or their folders")
    parser.add_argument("--write", action="store_true", help="into the pages, and the figure")
    arguments = parser.parse_args()
    try:
        groups = groups_of(arguments.records)
    except ValueError as error:
        parser.error(str(error))
    texts = ["\n".join(lines) for lines in (tables(groups), readme_table(groups))]
    print("\n\n".join(texts))
    if arguments.write:
        for file, marks, text in zip((PAGE, README), (MARKS, MARKS_OF_README), texts, strict=True):
            page.fill(file, marks, text)
        draw(groups, FRONT / "squad.svg")


if __name__ == "__main__":
    main()
