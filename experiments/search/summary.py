"""Tables of the page: all choices, and the search vs. the best equally fast single pattern at each latency.

    python -m experiments.search.summary packed --out results/search/minilm.csv    # rows of packed records
    python -m experiments.search.summary results/search/minilm.csv [--pairs packed] [--draw]

--pairs reads per-sample outcomes from the folders of the runs and writes minilm.pairs.csv, which the table includes: a line per
target speedup with the search's gain over the best equally fast single pattern on the same test samples, by a paired bootstrap.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

from experiments.harness import page
from experiments.harness.figures import new_figure, paper_style, save_svg, small_axes
from experiments.harness.rows import Row, read_lines, text, write
from sparsefront.results.plots import DENSE_COLOR, FRONT_COLOR, pattern_color
from sparsefront.results.statistics import compare_paired
from sparsefront.results.store import read_results
from sparsefront.tasks.outcomes import Outcomes

SEARCH = "search"
MEASURED = (
    "metric_name val_dense val_dense_continued val_sparse val_sparse_standard_error dense dense_continued masked "
    "sparse sparse_standard_error latency_dense_ms latency_sparse_ms latency_predicted_ms speedup speedup_low "
    "speedup_high sparsity_achieved sparse_flops_share prune_seconds recover_seconds run_id outcomes_file gpu "
    "torch_version commit dense_weights_sha256 time"
).split()
PAIR_COLUMNS = ("level", "seeds", "difference", "low", "high")
NOT_SLOWER = 1.02  # an equally fast single pattern may take this much longer than the search
ROUNDING = 1e-3  # points; rows and pairs have six digits
HEAD = (
    "speedup asked|seeds|reached (range)|predicted latency, off by|test|best single as fast|its speedup|its test".split(
        "|"
    )
)
HEAD += "difference (95 %)|single at just that speed|continued dense|part of the gap closed|search, s".split("|")


def all_choices(rows: Sequence[Row]) -> list[str]:
    """Markdown lines by latency: means over the seeds, with the standard deviation from two seeds on."""
    head = ["choice", "level", "seeds", "latency, ms", "speedup (range)"]
    head += ["held out", "− continued dense", "test", "− continued dense"]
    lines = []
    same: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        same.setdefault((row["choice"], row["level"]), []).append(row)
    for (choice, level), of_level in sorted(same.items(), key=lambda entry: _mean(entry[1], "latency_sparse_ms")):
        cells = [choice, level, str(len(of_level)), f"{_mean(of_level, 'latency_sparse_ms'):.3f}"]
        cells.append(_speedup(of_level))
        for split in ("val_", ""):
            accuracies = [100 * float(row[f"{split}sparse"]) for row in of_level]
            spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
            cells += [f"{mean(accuracies):.2f} %{spread}", _against_continued(of_level, split)]
        lines.append(cells)
    return page.table(head, lines)


def _against_continued(rows: Sequence[Row], split: str) -> str:
    """Percentage points above continued dense, mean over the seeds that have it."""
    pairs = [(row[f"{split}sparse"], row[f"{split}dense_continued"]) for row in rows]
    differences = [100 * (float(sparse) - float(continued)) for sparse, continued in pairs if continued]
    return f"{mean(differences):+.2f}" if differences else "–"


def _speedup(rows: Sequence[Row]) -> str:
    """Mean over the seeds, and the union of their ranges."""
    low, high = min(float(row["speedup_low"]) for row in rows), max(float(row["speedup_high"]) for row in rows)
    return f"{_mean(rows, 'speedup'):.2f} ({low:.2f}–{high:.2f})"


def _mean(rows: Sequence[Row], name: str) -> float:
    return mean(float(row[name]) for row in rows)


def table(rows: Sequence[Row], pairs: Sequence[Row] = ()) -> list[str]:
    """Markdown lines: means over the seeds, with the range of the prediction errors.

    Args:
        pairs: lines of `pairs`, whose intervals are shown with the differences.
    Raises:
        ValueError: an interval belongs to other rows.
    """
    pair_of = {float(pair["level"]): pair for pair in pairs}
    lines = []
    levels = sorted({float(row["level"]) for row in rows if row["choice"] == SEARCH})
    for level in levels:
        searched = [row for row in rows if row["choice"] == SEARCH and float(row["level"]) == level]
        lines.append([f"{level:g}", len(searched), *_cells(searched, rows, pair_of.get(level))])
    return page.table(HEAD, lines)


def _cells(searched: Sequence[Row], rows: Sequence[Row], pair: Row | None) -> list[str]:
    off = sorted(float(row["latency_predicted_ms"]) / float(row["latency_sparse_ms"]) - 1 for row in searched)
    between = " to ".join(dict.fromkeys(f"{share:+.1%}" for share in (off[0], off[-1])))
    cells = [_speedup(searched), between, f"{mean(map(_accuracy, searched)):.2%}"]
    beside = [(row, single) for row in searched if (single := best_single(row, rows)) is not None]
    if beside:
        singles = [single for _, single in beside]
        names = sorted({f"{single['choice']} at {single['level']}" for single in singles})
        differences = [100 * (_accuracy(row) - _accuracy(single)) for row, single in beside]
        ends = "" if pair is None else f" ({_interval(pair, differences)})"
        cells += [", ".join(names), f"{_mean(singles, 'speedup'):.2f}", f"{mean(map(_accuracy, singles)):.2%}"]
        cells.append(f"{mean(differences):+.2f}{ends}")
    else:
        cells += ["none", "–", "–", "–"]
    continued = [float(row["dense_continued"]) for row in searched if row["dense_continued"]]
    cells += [_at_speeds(searched, rows), f"{mean(continued):.2%}" if continued else "–", _closed(beside)]
    return [*cells, f"{mean(float(row['prune_seconds']) for row in searched):.0f}"]


def _interval(pair: Row, differences: Sequence[float]) -> str:
    """The interval of the mean of these differences, in points, as text."""
    seeds, difference, low, high = (
        int(pair["seeds"]),
        *(100 * float(pair[name]) for name in ("difference", "low", "high")),
    )
    if seeds != len(differences) or abs(difference - mean(differences)) > ROUNDING:
        ours = f"{mean(differences):+.2f} over {len(differences)}"
        raise ValueError(
            f"speedup {pair['level']}: the interval is of a difference of {difference:+.2f} points over {seeds} seeds, "
            f"while the rows have {ours}: run it with --pairs again"
        )
    return f"{low:+.2f} to {high:+.2f}"


def best_single(searched: Row, rows: Sequence[Row]) -> Row | None:
    """The equally fast single pattern of the same seed with the best held-out accuracy; None if none is as fast.

    Compares speedups over the dense network of the same process, since rows may be from several machines.
    """
    least = float(searched["speedup"]) / NOT_SLOWER
    as_fast = [row for row in _singles(searched, rows) if float(row["speedup"]) >= least]
    return max(as_fast, key=_held_out, default=None)


def single_at_speed(searched: Row, rows: Sequence[Row]) -> tuple[str, float] | None:
    """The single pattern with the best held-out accuracy at exactly the search's speedup, and its test accuracy, interpolated
    linearly between its sparsities; None if no two of them enclose that speedup.
    """
    speedup = float(searched["speedup"])
    best: tuple[float, str, float] | None = None
    singles = _singles(searched, rows)
    for choice in sorted({row["choice"] for row in singles}):
        line = sorted((row for row in singles if row["choice"] == choice), key=lambda row: float(row["speedup"]))
        for slower, faster in pairwise(line):
            ends = float(slower["speedup"]), float(faster["speedup"])
            if ends[0] <= speedup <= ends[1]:
                # two sparsities of equal speed count separately
                shares = [(speedup - ends[0]) / (ends[1] - ends[0])] if ends[0] < ends[1] else [0.0, 1.0]
                for share in shares:
                    held_out, test = (
                        value(slower) + share * (value(faster) - value(slower)) for value in (_held_out, _accuracy)
                    )
                    best = max(best or (held_out, choice, test), (held_out, choice, test))
    return None if best is None else best[1:]


def _at_speeds(searched: Sequence[Row], rows: Sequence[Row]) -> str:
    singles = [single_at_speed(row, rows) for row in searched]
    if None in singles:
        return "–"
    return f"{', '.join(sorted({choice for choice, _ in singles}))}: {mean(test for _, test in singles):.2%}"


def _singles(searched: Row, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["choice"] != SEARCH and row["seed"] == searched["seed"]]


def _closed(beside: Sequence[tuple[Row, Row]]) -> str:
    """The fraction of the single pattern's loss to continued dense that the search avoids."""
    gaps = [
        (float(row["dense_continued"]) - _accuracy(single), _accuracy(row) - _accuracy(single))
        for row, single in beside
        if row["dense_continued"]
    ]
    lost = sum(gap for gap, _ in gaps)
    return f"{sum(gained for _, gained in gaps) / lost:.0%}" if lost > 0 else "–"


def _accuracy(row: Row) -> float:
    return float(row["sparse"])


def _held_out(row: Row) -> float:
    return float(row["val_sparse"] or row["sparse"])


def pairs_file(rows: Path) -> Path:
    return rows.with_suffix(".pairs.csv")


def pairs(rows: Sequence[Row], outcomes_of: Callable[[str], Outcomes | None]) -> list[Row]:
    """A line per target speedup for which every seed has an equally fast single pattern and both have outcomes.

    Args:
        outcomes_of: run_id -> outcomes of the sparse network; None if not kept.
    Returns:
        accuracy of the search minus that of the single pattern, with its 95 % interval, as fractions.
    """
    lines = []
    for level in sorted({row["level"] for row in rows if row["choice"] == SEARCH}, key=float):
        searched = [row for row in rows if (row["choice"], row["level"]) == (SEARCH, level)]
        singles = [best_single(row, rows) for row in searched]
        if None in singles:
            continue
        ours, theirs = ([outcomes_of(row["run_id"]) for row in side] for side in (searched, singles))
        if any(outcomes is None for outcomes in (*ours, *theirs)):
            continue
        difference = compare_paired(ours, theirs, same_seeds=True)
        values = (
            level,
            len(searched),
            *(f"{value:.6g}" for value in (difference.value, difference.low, difference.high)),
        )
        lines.append(dict(zip(PAIR_COLUMNS, map(str, values), strict=True)))
    return lines


def write_pairs(path: Path, folders: Sequence[Path]) -> None:
    """Write the pairs of a file's rows next to it, from the folders of their runs."""
    reading = read_results(folders)
    results = {result.identity.run_id: result for result in reading.results}

    def outcomes_of(run_id: str) -> Outcomes | None:
        outcomes = reading.outcomes_of(results[run_id]) if run_id in results else None
        if outcomes is None:
            where = ", ".join(map(str, folders))
            print(f"run {run_id}: no folder with its outcomes below {where}; its speedup gets no interval")
            return None
        return outcomes["sparse"]

    write(pairs_file(path), PAIR_COLUMNS, pairs(read_lines(path), outcomes_of))


def rows_of(records: Sequence[Path]) -> list[Row]:
    """A row for each packed record: its choice and level, and what was measured."""
    rows = []
    for result in read_results(records).results:
        choice, searched = result.choice, result.choice.allocation == "latency_search"
        single = choice.pattern + (f":{choice.granularity}" if choice.granularity else "")
        level = choice.allocation_parameters["speedup"] if searched else result.sparsity.sparsity_target
        choices = {"choice": SEARCH if searched else single, "level": f"{level:g}", "seed": str(result.identity.seed)}
        flat = result.flat()
        rows.append(choices | {name: str(text(flat[name])) for name in MEASURED})
    return rows


SPLITS = {"val_": "held-out part of train, which decides", "": "test, which is reported"}


@paper_style
def draw(rows: Sequence[Row], path: Path) -> Path:
    """Accuracy by latency on both splits, means over seeds, with the front that held-out accuracy picks."""
    figure = new_figure(len(SPLITS))
    for axes, (split, title) in zip(figure.axes, SPLITS.items(), strict=True):
        places: dict[str, list[tuple[float, ...]]] = {}
        for choice, level in sorted({(row["choice"], row["level"]) for row in rows}):
            same = [row for row in rows if (row["choice"], row["level"]) == (choice, level)]
            accuracies = [100 * float(row[f"{split}sparse"]) for row in same]
            error = stdev(accuracies) if len(accuracies) > 1 else 0.0
            place = (_mean(same, "latency_sparse_ms"), mean(accuracies), error, _mean(same, "val_sparse"))
            places.setdefault(choice, []).append(place)
        for choice, of_choice in places.items():
            latency, accuracy, error, _ = zip(*sorted(of_choice), strict=True)
            color = pattern_color("mixed" if choice == SEARCH else choice.partition(":")[0])
            axes.errorbar(latency, accuracy, error, marker="o", color=color, label=choice)
        steps = front([place for of_choice in places.values() for place in of_choice])
        axes.step(*list(zip(*steps))[:2], where="post", color=FRONT_COLOR, linestyle="--", zorder=0, label="front")
        for name, face in (("dense", DENSE_COLOR), ("dense_continued", "none")):
            dense = [row for row in rows if row[f"{split}{name}"]]
            place = ([_mean(dense, "latency_dense_ms")], [100 * _mean(dense, f"{split}{name}")]) if dense else ([], [])
            label = name.replace("dense_continued", "continued dense")
            axes.plot(*place, "*", markersize=9, color=DENSE_COLOR, markerfacecolor=face, label=label)
        small_axes(axes, x="latency of a batch, ms", y=f"{rows[0]['metric_name']}, %", title=title)
    figure.axes[0].legend()
    return save_svg(figure, path)


def front(places: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The Pareto-optimal of (latency, ..., held-out accuracy); test accuracy selects nothing."""
    best, chosen = float("-inf"), []
    for place in sorted(places, key=lambda place: (place[0], -place[-1])):
        if place[-1] > best:
            chosen.append(place)
            best = place[-1]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "paths", type=Path, nargs="+", help="CSV files of rows; with --out packed records or their folders"
    )
    parser.add_argument("--out", type=Path, help="a new CSV file with the rows of packed records")
    parser.add_argument(
        "--pairs", type=Path, nargs="+", metavar="FOLDER", help="runs or records: intervals of differences"
    )
    parser.add_argument("--draw", action="store_true", help="the figure too")
    arguments = parser.parse_args()
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write(arguments.out, ("choice", "level", "seed", *MEASURED), rows_of(arguments.paths))
        return
    for path in arguments.paths:
        if arguments.pairs:
            write_pairs(path, arguments.pairs)
        rows, pairs_of_rows = read_lines(path), read_lines(pairs_file(path))
        try:
            print("\n".join([path.stem, "", *all_choices(rows), "", *table(rows, pairs_of_rows), ""]))
        except ValueError as error:
            raise SystemExit(f"{path}: {error}") from error
        if arguments.draw:
            draw(rows, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
