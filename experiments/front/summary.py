"""The table and the figure of the front, from its lines and their packed records.

    python -m experiments.front.summary experiments/front/squad.csv --records experiments/records/front

Prints the table and writes a figure beside the lines. A loss is against `dense_distilled`, the dense network trained on with the
same steps and teacher; intervals against the dense network before pruning are a paired bootstrap over questions and seeds, from
what each run answered.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

from experiments.front.study import CHOICES
from experiments.harness import page
from experiments.harness.figures import new_figure, save_png
from experiments.harness.rows import Row
from sparsefront.results.plots import SERIES_COLORS
from sparsefront.results.statistics import paired_difference
from sparsefront.results.store import read_lines, read_results
from sparsefront.tasks.outcomes import Outcomes

HEAD = ("choice", "level", "seeds", "F1", "− dense with teacher", "− dense before", "own batches", "128 tokens", "ms")
OutcomesOf = Callable[[str], dict[str, Outcomes] | None]


def score(row: Row) -> float:
    """F1 in per cent: through the kernels where they were swapped in, else of the masked network."""
    return 100 * float(row["sparse"] or row["masked"])


def losses(rows: Sequence[Row]) -> list[float]:
    """Points of F1 above the dense network with the same steps and teacher, by seed."""
    return [score(row) - 100 * float(row["dense_distilled"]) for row in rows]


def lines_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """(choice, level) -> its rows, in the order of CHOICES."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(
        rows, key=lambda row: (list(CHOICES).index(row["choice"]), float(row["level"]), int(row["seed"]))
    ):
        found.setdefault((row["choice"], row["level"]), []).append(row)
    return found


def table(rows: Sequence[Row], outcomes_of: OutcomesOf) -> list[str]:
    """Lines of Markdown: means over the seeds; speedups of the seeds that were timed."""
    cells = []
    for (choice, level), of_line in lines_of(rows).items():
        timed = [row for row in of_line if row["speedup_dataset"]]
        speeds = [_speedup(timed, "speedup_dataset"), _speedup(timed, "speedup")]
        latency = f"{mean(float(row['latency_sparse_dataset_ms']) for row in timed):.2f}" if timed else "–"
        beside = (_interval(of_line, outcomes_of, side) for side in ("dense_distilled", "dense"))
        own = [page.spread([score(row) for row in of_line]), next(beside) or _signed(losses(of_line)), next(beside)]
        cells.append([choice, level, len(of_line), *own, *speeds, latency])
    return page.table(HEAD, cells)


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Loss against speedup on the data's own batches, a line for each choice that was timed; bars are the spread of the seeds."""
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    lines = lines_of(rows)
    for color, choice in zip(SERIES_COLORS, dict.fromkeys(choice for choice, _ in lines), strict=False):
        places = []
        for (other, level), of_line in lines.items():
            speeds = [float(row["speedup_dataset"]) for row in of_line if row["speedup_dataset"]]
            if other == choice and speeds:
                found = losses(of_line)
                places.append((mean(speeds), mean(found), stdev(found) if len(found) > 1 else 0.0, level))
        if places:
            x, y, spread, levels = zip(*sorted(places), strict=True)
            axes.errorbar(x, y, yerr=spread, color=color, marker="o", capsize=3, label=choice)
            for place in zip(levels, x, y, strict=True):
                axes.annotate(
                    f"{float(place[0]):.0%}", place[1:], textcoords="offset points", xytext=(6, 5), fontsize=8
                )
    axes.plot([1], [0], marker="*", markersize=12, color="black", linestyle="", label="dense with teacher")
    axes.set_xlabel("times as fast as the fastest dense fp16, on the evaluation's own batches")
    axes.set_ylabel("points of F1 lost (to the right and up is better)")
    axes.grid(alpha=0.25)
    axes.legend()
    return save_png(figure, path)


def _speedup(rows: Sequence[Row], name: str) -> str:
    if not rows:
        return "not timed"
    low, high = min(float(row[f"{name}_low"]) for row in rows), max(float(row[f"{name}_high"]) for row in rows)
    return f"{mean(float(row[name]) for row in rows):.2f}× ({low:.2f}–{high:.2f})"


def _signed(values: Sequence[float]) -> str:
    return f"{mean(values):+.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _interval(rows: Sequence[Row], outcomes_of: OutcomesOf, side: str) -> str:
    """Of the difference to another network; empty where not all runs hold its outcomes."""
    found = [outcomes_of(row["run_id"]) or {} for row in rows]
    if any(side not in outcomes for outcomes in found):
        return ""
    ours = [outcomes.get("sparse") or outcomes["masked"] for outcomes in found]
    theirs = [outcomes[side] for outcomes in found]
    difference = paired_difference(ours, theirs, same_seeds=True)
    return f"{100 * difference.value:+.2f} ({100 * difference.low:+.2f} to {100 * difference.high:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="?", default=Path("results/front/rows.csv"), help="lines of the study")
    parser.add_argument(
        "--records", type=Path, nargs="+", default=[Path("results")], help="of the runs, or their folders"
    )
    arguments = parser.parse_args()
    rows, reading = read_lines(arguments.rows), read_results(arguments.records)
    results = {result.identity.run_id: result for result in reading.results}
    print("\n".join(table(rows, lambda run: reading.outcomes_of(results[run]) if run in results else None)))
    draw(rows, arguments.rows.with_suffix(".png"))


if __name__ == "__main__":
    main()
