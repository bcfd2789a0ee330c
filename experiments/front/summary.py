"""The table and the figure of the front, from its lines and their packed records.

    python -m experiments.front.summary experiments/front/squad.csv --records experiments/records/front

Prints the table and the fastest line of each kind whose loss is surely small, and writes a figure beside the first file. A loss
is against `dense_distilled`, the dense network trained on with the same steps and teacher, and of a dense network that nothing
trains on against itself in 16 bits. Intervals and bounds are a paired bootstrap over questions and seeds, from what each run
answered. Of several files the last one that has a line counts. Latencies of two machines or commits are never shown together:
--commit names the one whose latencies count. A bound of five seeds holds 94 to 97 % of the time, 92 % where seeds differ far more
than the questions do, one of three 93 to 96 % (simulated).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from experiments.front.study import CHOICES, DENSE, DEPTH, LOW_PRECISIONS, SEARCHES, WIDTH
from experiments.harness import page
from experiments.harness.figures import new_figure, save_png
from experiments.harness.rows import Row, newest, values_of
from sparsefront.progress import counted
from sparsefront.results.plots import series_styles
from sparsefront.results.statistics import LEAST_SEEDS, Difference, paired_difference
from sparsefront.results.store import read_lines, read_results
from sparsefront.tasks.outcomes import Outcomes

METRICS = {"f1": "F1", "accuracy": "accuracy"}
TEACHER = "dense_distilled"
MOST_LOST = 1.5  # points, in the bar of the study
KINDS = {"single patterns": (), "search": SEARCHES, DEPTH: (DEPTH,), WIDTH: (WIDTH,), DENSE: (DENSE,)}
"""Kind -> its choices; the first holds all others."""
PLACE = ("gpu", "commit", "torch_version")
SPEEDS = ("speedup_dataset", "speedup")
OVER_LOW = "speedup_low_precision_dataset"
LATENCIES = (
    "latency_dense_ms",
    "latency_sparse_ms",
    "latency_dense_dataset_ms",
    "latency_sparse_dataset_ms",
    *SPEEDS,
    OVER_LOW,
)
OutcomesOf = Callable[[str], dict[str, Outcomes] | None]


# Lines: the rows of a choice, a level and a precision, one for each seed.


@dataclass(frozen=True)
class Line:
    """Rows of seeds that share all else.

    Args:
        lost: difference to the dense network with the same steps and teacher (of one that nothing trains on, to itself in 16
            bits), over the runs that hold its outcomes; None where none does. With 95 % the loss is below -lost.bound.
        before: likewise to the dense network before pruning.
    """

    choice: str
    level: str
    precision: str
    rows: list[Row]
    lost: Difference | None = None
    before: Difference | None = None

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return next((kind for kind, choices in KINDS.items() if self.choice in choices), next(iter(KINDS)))

    @property
    def timed(self) -> list[Row]:
        """The rows with a latency on the evaluation's own batches."""
        return [row for row in self.rows if row["speedup_dataset"]]

    @property
    def speedup(self) -> float | None:
        """On the evaluation's own batches, the mean of the seeds that were timed."""
        return mean(float(row["speedup_dataset"]) for row in self.timed) if self.timed else None

    @property
    def most_lost(self) -> float | None:
        """Points, with 95 %."""
        return None if self.lost is None else -100 * self.lost.bound

    @property
    def name(self) -> str:
        """In a sentence."""
        named = f"{self.choice} {_level(self)}".strip()
        return f"{named} in {self.precision}" if self.precision in LOW_PRECISIONS else named


def read_rows(files: Sequence[Path], *, commit: str | None = None) -> list[Row]:
    """Rows of several files, without the latencies of other commits than the one named.

    Raises:
        ValueError: a choice that the study does not have, two metrics, or latencies of two machines or commits.
    """
    rows = newest(
        (row for file in files for row in read_lines(file)),
        key=lambda row: values_of(row, ("choice", "level", "seed", "precision")),
    )
    if commit is not None:
        rows = [row if row["commit"] == commit else row | dict.fromkeys(LATENCIES, "") for row in rows]
    if unknown := sorted({row["choice"] for row in rows} - CHOICES.keys()):
        raise ValueError(f"choice {unknown[0]!r} is none of the study's: {', '.join(CHOICES)}")
    if len(metrics := sorted({row["metric_name"] for row in rows})) > 1:
        raise ValueError(f"rows of {' and '.join(metrics)} share no table")
    places = sorted({values_of(row, PLACE) for row in rows if any(row.get(name) for name in LATENCIES)})
    if len(places) > 1:
        told = "; ".join(" ".join(place) for place in places)
        raise ValueError(f"latencies of several machines or commits share no figure: {told}; name one with --commit")
    return rows


def lines_of(rows: Sequence[Row], outcomes_of: OutcomesOf = lambda run: None) -> list[Line]:
    """In the order of CHOICES.

    Args:
        outcomes_of: run_id -> network -> its outcomes.
    """
    order = list(CHOICES)
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in sorted(
        rows, key=lambda row: (order.index(row["choice"]), row["precision"], float(row["level"]), int(row["seed"]))
    ):
        found.setdefault((row["choice"], row["level"], row["precision"]), []).append(row)
    return [
        Line(*named, of_line, *(_difference(of_line, outcomes_of, side) for side in (_rival(named[0]), "dense")))
        for named, of_line in found.items()
    ]


# What a line loses.


def _rival(choice: str) -> str:
    """The network that a line's loss is against: by its name in the record."""
    return "dense" if choice == DENSE else TEACHER


def score(row: Row) -> float:
    """Of what ran, in per cent: through the kernels where they were swapped in, else of the masked or the dense network."""
    return 100 * float(row["sparse"] or row["masked"] or row["dense"])


def losses(rows: Sequence[Row]) -> list[float]:
    """Points above the rival of `_rival`, by seed."""
    return [score(row) - 100 * float(row[_rival(row["choice"])]) for row in rows]


def _difference(rows: Sequence[Row], outcomes_of: OutcomesOf, side: str) -> Difference | None:
    """To another network of the same runs."""
    pairs = []
    for row in rows:
        found = outcomes_of(row["run_id"]) or {}
        ours, theirs = found.get("sparse", found.get("masked")), found.get(side)
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs))
    return paired_difference(*zip(*pairs, strict=True), same_seeds=True) if pairs else None


def fastest_within(lines: Sequence[Line], most: float = MOST_LOST) -> dict[str, Line | None]:
    """Kind -> its fastest line of enough seeds whose loss is at most so many points, by its bound."""
    best: dict[str, Line | None] = dict.fromkeys(kind for kind in KINDS if any(line.kind == kind for line in lines))
    for line in lines:
        few = line.lost is None or line.lost.runs < LEAST_SEEDS
        if line.speedup is None or line.most_lost is None or few or line.most_lost > most:
            continue
        other = best[line.kind]
        if other is None or other.speedup is None or other.speedup < line.speedup:
            best[line.kind] = line
    return best


# Table, sentences and figure.


def table(lines: Sequence[Line]) -> list[str]:
    """Lines of Markdown: means over the seeds; speedups of the seeds that were timed."""
    loss = ("− dense with teacher", "loss below (95 %)", "− dense before")
    head = ["choice", "level", "precision", "seeds", _metric(lines), *loss, "own batches", "128 tokens", "ms"]
    low = any(row.get(OVER_LOW) for line in lines for row in line.rows)
    if low:
        head.append("own batches, over dense in low precision")
    cells = []
    for line in lines:
        latency = f"{mean(float(row['latency_sparse_dataset_ms']) for row in line.timed):.2f}" if line.timed else "–"
        speeds = [_speedup(line.timed, name) for name in SPEEDS]
        quality = [page.spread([score(row) for row in line.rows]), _signed(losses(line.rows)), *_from_outcomes(line)]
        cells.append([line.choice, line.level, line.precision, len(line.rows), *quality, *speeds, latency])
        if low:
            cells[-1].append(_speedup([row for row in line.rows if row.get(OVER_LOW)], OVER_LOW, "–"))
    return page.table(head, cells)


def table_of_kinds(lines: Sequence[Line]) -> list[str]:
    """Lines of Markdown: the fastest line of each kind within the bar."""
    head = (
        "kind",
        f"fastest that loses at most {MOST_LOST:g} {_metric(lines)} (95 %)",
        "own batches",
        "lines with a bound",
    )
    cells = []
    for kind, line in fastest_within(lines).items():
        of_kind = [other for other in lines if other.kind == kind]
        known = f"{sum(other.lost is not None for other in of_kind)} of {len(of_kind)}"
        cells.append(
            [kind, "none" if line is None else line.name, _speedup(line.timed if line else [], SPEEDS[0], "–"), known]
        )
    return page.table(head, cells)


def sparse_in_words(lines: Sequence[Line]) -> str:
    """How the fastest sparse line within the bar compares with the fastest smaller dense network there."""
    best = fastest_within(lines)
    sparse, smaller = (_best_speedup(best, kinds) for kinds in (("single patterns", "search"), (DEPTH, WIDTH)))
    if sparse is None or smaller is None:
        kind = "sparse" if sparse is None else "smaller dense"
        return f"No {kind} line is certain (95 %) to lose at most {MOST_LOST:g} {_metric(lines)}."
    return f"The fastest sparse line is {sparse / smaller:.2f} times as fast as the fastest smaller dense one."


def draw(lines: Sequence[Line], path: Path) -> Path:
    """Loss against speedup on the data's own batches, a curve for each choice and precision that was timed: open markers are of
    low precision, bars the spread of the seeds.
    """
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    timed = [line for line in lines if line.speedup is not None]
    styles = series_styles(dict.fromkeys(line.choice for line in timed))
    for choice, precision in dict.fromkeys((line.choice, line.precision) for line in timed):
        drawn = [line for line in timed if (line.choice, line.precision) == (choice, precision)]
        lost = [losses(line.rows) for line in drawn]
        spread = [stdev(found) if len(found) > 1 else 0.0 for found in lost]
        x, y = [line.speedup for line in drawn], [mean(found) for found in lost]
        low, style = precision in LOW_PRECISIONS, styles[choice]
        axes.errorbar(
            x,
            y,
            yerr=spread,
            color=style.color,
            marker=style.marker,
            markerfacecolor="white" if low else style.color,
            linestyle="--" if low else "-",
            capsize=3,
            label=f"{choice}, {precision}" if low else choice,
        )
        for line, *place in zip(drawn, x, y, strict=True):
            axes.annotate(_level(line), place, textcoords="offset points", xytext=(6, 5), fontsize=8)
    axes.plot([1], [0], marker="*", markersize=12, color="black", linestyle="", label="dense with teacher")
    axes.set_xlabel("times as fast as the fastest dense fp16, on the evaluation's own batches")
    axes.set_ylabel(f"points of {_metric(lines)} lost (to the right and up is better)")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return save_png(figure, path)


def _metric(lines: Sequence[Line]) -> str:
    name = lines[0].rows[0]["metric_name"]
    return METRICS.get(name, name)


def _level(line: Line) -> str:
    if line.choice == DENSE:
        return ""
    return f"{line.level}×" if line.choice in SEARCHES else f"{float(line.level):.0%}"


def _from_outcomes(line: Line) -> tuple[str, str]:
    """The bound of the loss, and the difference to the network before pruning."""
    bound, before = "no outcomes", ""
    if line.lost is not None and line.most_lost is not None:
        runs = line.lost.runs
        bound = f"{line.most_lost:.2f}" + (f" ({counted(runs, 'seed')})" if runs < len(line.rows) else "")
    if line.before is not None:
        value, low, high = (100 * found for found in (line.before.value, line.before.low, line.before.high))
        before = f"{value:+.2f} ({low:+.2f} to {high:+.2f})"
    return bound, before


def _best_speedup(best: Mapping[str, Line | None], kinds: Sequence[str]) -> float | None:
    found = [line.speedup for kind in kinds if (line := best.get(kind)) is not None and line.speedup is not None]
    return max(found, default=None)


def _speedup(rows: Sequence[Row], name: str, absent: str = "not timed") -> str:
    if not rows:
        return absent
    low, high = min(float(row[f"{name}_low"]) for row in rows), max(float(row[f"{name}_high"]) for row in rows)
    return f"{mean(float(row[name]) for row in rows):.2f}× ({low:.2f}–{high:.2f})"


def _signed(values: Sequence[float]) -> str:
    return f"{mean(values):+.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "rows", type=Path, nargs="*", default=[Path("results/front/rows.csv")], help="files with lines of the study"
    )
    parser.add_argument(
        "--records", type=Path, nargs="+", default=[Path("results")], help="of the runs, or their folders"
    )
    parser.add_argument("--commit", help="latencies of other commits are left out")
    arguments = parser.parse_args()
    try:
        rows = read_rows(arguments.rows, commit=arguments.commit)
    except ValueError as error:
        parser.error(str(error))
    if not rows:
        parser.error(f"no lines in {', '.join(map(str, arguments.rows))}")
    reading = read_results(arguments.records)
    results = {result.identity.run_id: result for result in reading.results}

    def outcomes_of(run: str) -> dict[str, Outcomes] | None:
        return reading.outcomes_of(results[run]) if run in results else None

    lines = lines_of(rows, outcomes_of)
    print("\n".join([*table(lines), "", *table_of_kinds(lines), "", sparse_in_words(lines)]))
    draw(lines, arguments.rows[0].with_suffix(".png"))


if __name__ == "__main__":
    main()
