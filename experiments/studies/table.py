"""The tables of a study's page, and its figure of accuracy by sparsity, from the rows of points.csv.

    python -m experiments.studies.table [STUDY ...] [--write]

A row counts if it was measured with the settings that study.yaml now has; of a repeated point the last row counts. Metrics are in
percent, mean ± standard deviation over seeds; differences are to the dense network of the row's own seed, and to the same network
trained for the same extra steps.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from experiments.harness import page
from experiments.harness.figures import MARKERS, new_figure, paper_style, save_svg, small_axes
from experiments.harness.page import number
from experiments.harness.rows import read_lines
from experiments.studies.study import (
    DIGEST,
    END_OF_POINT,
    EXPERIMENTS,
    STUDY_FILE,
    UNTIMED,
    Cell,
    Line,
    Study,
    settings,
)
from sparsefront.results.plots import DENSE_COLOR, pattern_color

MARKS = ("<!-- tables, as table.py prints them -->", "<!-- end of the tables -->")
PLOT, PRODUCTS = "accuracy.svg", "products.csv"
LEAST_SHORTFALL, NEAR = 0.02, 0.005  # of the sparsity: below these it is rounding
GRADUAL_N_M_SINCE = "2026-11-29"  # before, n:m stood at fewer zeros until the last update of a gradual schedule
FINALISTS = 2  # rows of each target that get further seeds
OWN_MASKS = "pattern"  # `distribution` of masks that the pattern itself makes
SPLITS = {"val": "val_", "test": ""}
HEAD = ["line", "", "block", "seeds", "val", "− dense", "− continued dense", "test", "− dense", "− continued dense"]
HEAD += ["speedup auto", "speedup sparse", "source"]


@dataclass(frozen=True)
class Measured:
    """The rows of one cell.

    Args:
        of_seed: seed -> the row with its accuracy.
        timed: kernel option -> the timed row of the lowest seed.
        repeated: pairs of an earlier row and the one that counts.
        unsupported: why there is no such network.
    """

    cell: Cell
    of_seed: dict[int, Line]
    timed: dict[str, Line]
    repeated: list[tuple[Line, Line]]
    unsupported: str

    def values(self, name: str, minus: str | None = None) -> list[float]:
        """A metric, or its difference to another, of each seed in percent; empty if a row lacks one of them."""
        pairs = [(number(line, name), 0.0 if minus is None else number(line, minus)) for line in self.of_seed.values()]
        return [] if any(None in pair for pair in pairs) else [100 * (value - other) for value, other in pairs]

    @property
    def first(self) -> Line:
        return next(iter(self.of_seed.values()))


def tabulate_seeds(study: Study) -> list[Measured]:
    """Every cell with its rows, in the order of the tables."""
    rows: dict[tuple[str, ...], list[Line]] = {}
    for line in read_lines(study.points_file):
        rows.setdefault(tuple(line[name] for name in ("network", "table", "row", "column")), []).append(line)
    return [_measured(study, cell, rows) for cell in study.cells]


def _measured(study: Study, cell: Cell, rows: dict[tuple[str, ...], list[Line]]) -> Measured:
    of_seed, timed, unsupported, repeated = {}, {}, "", []
    for line in rows.get((cell.network, cell.table, cell.row, cell.column), []):
        own = takewhile(lambda text: text != END_OF_POINT, shlex.split(line["overrides"]))
        seed = int(line["seed"])
        if settings(own) != settings(study.overrides_of(cell, seed)):
            continue
        unsupported = unsupported or line["unsupported"]
        if line["speedup"] and line["kernel"] != UNTIMED:
            timed.setdefault(line["kernel"], {})[seed] = line
        if line["masked"] and (line["kernel"] == UNTIMED or seed not in of_seed):
            if seed in of_seed and of_seed[seed]["kernel"] == UNTIMED:
                repeated.append((of_seed[seed], line))
            of_seed[seed] = line
    first_timed = {kernel: seeds[min(seeds)] for kernel, seeds in timed.items()}
    return Measured(cell, dict(sorted(of_seed.items())), first_timed, repeated, unsupported)


def tables(study: Study, cells: Sequence[Measured]) -> Iterator[str]:
    """Lines of Markdown: the targets, and each table of each network that has rows."""
    yield from (*_networks(cells), "")
    if study.targets:
        yield from (*_targets(study, cells), "")
    for (network, title), group in groupby(cells, key=lambda one: (one.cell.network, one.cell.table)):
        of_table = list(group)
        if any(one.of_seed or one.unsupported for one in of_table):
            table = next(table for table in study.tables if table["title"] == title)
            yield from (f"## {title}: {network}", "", *_table(of_table, table.get("paper", "")), "")
            crossing = table.get("crossing")
            if crossing and network in crossing.get("networks", study.networks):
                yield from (*_iso_accuracy(study, crossing, of_table), "")
    yield from _products(study.points_file.with_name(PRODUCTS))
    yield from _checks(cells)


def _networks(cells: Sequence[Measured]) -> list[str]:
    """What is measured of each network, and the standard error of the dense network's metric on test."""
    texts = []
    for network, group in groupby(cells, key=lambda one: one.cell.network):
        lines = [line for one in group for line in one.of_seed.values()]
        if lines:
            first, steps = lines[0], {int(line["recovery_steps"]) for line in lines if line["recovery_steps"]}
            samples = (first["val_evaluated_samples"], first["evaluated_samples"])
            error = f"{100 * float(first['dense_standard_error']):.2f}"
            texts.append([network, first["metric_name"], *samples, error, ", ".join(map(str, sorted(steps)))])
    head = ["network", "metric", "samples of val", "of test", "standard error, test", "recovery steps"]
    return page.table(head, texts)


def _table(cells: Sequence[Measured], paper: str) -> Iterator[str]:
    lines = [line for one in cells for line in one.of_seed.values()]
    letters = _letters(lines)
    texts = list(_dense(cells, lines, letters))
    for one in cells:
        cell, source = one.cell, one.cell.source
        if not (one.of_seed or one.unsupported or (source is not None and cell.planned)):
            continue
        label = cell.row + (f" ({cell.note})" if cell.note else "")
        blocks = ", ".join(sorted({letters[line[DIGEST]] for line in one.of_seed.values() if line[DIGEST] in letters}))
        shown = f"{source:.2f}" if isinstance(source, float) and source > 10 else "" if source is None else str(source)
        texts.append([label, cell.column + _flaws(one), blocks, len(one.of_seed), *_metrics(one), shown])
    columns = [place for place in range(len(HEAD)) if any(text[place] != "" for text in texts)]
    yield from page.table([HEAD[place] for place in columns], [[text[place] for place in columns] for text in texts])
    yield ""
    if letters:
        yield "A seed has several dense networks: **compare within a block only**. "
    missing = dict.fromkeys(one.cell.row for one in cells if one.cell.planned and not (one.of_seed or one.unsupported))
    if missing:
        yield f"*Not measured*, or not at every level: {', '.join(f'`{row}`' for row in missing)}. "
    if paper:
        yield f"Source: {paper}."


def _letters(lines: Sequence[Line]) -> dict[str, str]:
    """Digest of dense weights -> letter, if rows of a seed have several dense networks."""
    of_seed: dict[str, dict[str, None]] = {}
    for line in lines:
        of_seed.setdefault(line["seed"], {})[line[DIGEST]] = None
    several = [digest for digests in of_seed.values() if len(digests) > 1 for digest in digests]
    return {digest: chr(ord("A") + place) for place, digest in enumerate(dict.fromkeys(several))}


def _dense(cells: Sequence[Measured], lines: Sequence[Line], letters: dict[str, str]) -> Iterator[list[object]]:
    """The dense networks: one of each seed together, those with a letter, and the ranges of the continued ones."""
    newest = {line[DIGEST]: line for line in {line["seed"]: line for line in lines}.values()}
    alone = {letters[line[DIGEST]]: [line] for line in lines if line[DIGEST] in letters}
    for letter, group in ({"": list(newest.values())} | dict(sorted(alone.items()))).items() if lines else ():
        val, test = (page.spread([100 * float(line[f"{prefix}dense"]) for line in group]) for prefix in SPLITS.values())
        yield ["dense", "", letter, len(group), val, "", "", test, *[""] * 5]
    ranges = []
    for prefix in SPLITS.values():
        values = [
            100 * value for value in (number(line, f"{prefix}dense_continued") for line in lines) if value is not None
        ]
        ranges.append(" to ".join(dict.fromkeys(f"{end(values):.2f}" for end in (min, max))) if values else "")
    if all(ranges):
        yield ["continued dense", "", "", "", ranges[0], "", "", ranges[1], *[""] * 5]


def _flaws(one: Measured) -> str:
    """The sparsity reached, if layers that do not fit keep it below the target; and a dagger for masks of a wrong schedule."""
    if not one.of_seed:
        return ""
    asked, achieved = (float(one.first[name]) for name in ("sparsity_target", "sparsity_achieved"))
    late = one.first["schedule"] == "gradual" and one.first["n_of_m"] and one.first["time"] < GRADUAL_N_M_SINCE
    return (f" (has {100 * achieved:.0f} %)" if asked - achieved > LEAST_SHORTFALL else "") + (" †" if late else "")


def _metrics(one: Measured) -> list[str]:
    if not one.of_seed:
        return [f"unsupported: {one.unsupported}" if one.unsupported else "missing", *[""] * 7]
    texts = []
    for prefix in SPLITS.values():
        texts.append(page.spread(one.values(f"{prefix}masked")))
        for other in ("dense", "dense_continued"):
            lost = one.values(f"{prefix}masked", minus=f"{prefix}{other}")
            texts.append(f"{mean(lost):+.2f}" if lost else "")
    for kernel in ("auto", "sparse"):
        line = one.timed.get(kernel)
        texts.append("" if line is None else page.speedup(line) + ("" if line["gpu"] else ", CPU reference"))
    return texts


def _targets(study: Study, cells: Sequence[Measured]) -> Iterator[str]:
    """The row with the best mean val of the two that are best with the first seed, and what it reaches on test."""
    head = ["network", "column", "best on val", "of", "seeds", "val", "test", "target", ""]
    texts = []
    for network, targets in study.targets.items():
        for column, target in targets.items():
            first = study.headline_seeds[0]
            ranked = [one for one in cells if (one.cell.network, one.cell.column) == (network, column)]
            ranked = [one for one in ranked if one.of_seed.get(first, {}).get("val_masked")]
            ranked.sort(key=lambda one: float(one.of_seed[first]["val_masked"]), reverse=True)
            if not ranked:
                continue
            decided = all(set(study.headline_seeds) <= one.of_seed.keys() for one in ranked[:FINALISTS])
            best = max(ranked[:FINALISTS], key=lambda one: mean(one.values("val_masked"))) if decided else ranked[0]
            verdict = "reached" if mean(best.values("masked")) >= target else "not reached"
            val, test = (page.spread(best.values(f"{prefix}masked")) for prefix in SPLITS.values())
            place = [network, column, best.cell.row, len(ranked), len(best.of_seed)]
            texts.append([*place, val, test, f"{target:g}", verdict + ("" if decided else " so far")])
    yield from page.table(head, texts)


def _iso_accuracy(study: Study, crossing: dict[str, Any], cells: Sequence[Measured]) -> Iterator[str]:
    """The sparsity at which each line loses the points of the crossing, by linear interpolation between levels."""
    points, first = crossing["points"], study.headline_seeds[0]
    pairs = [(other, prefix) for other in ("dense", "dense_continued") for prefix in SPLITS.values()]
    seeds = range(first, first + crossing["retrainings"])
    texts = []
    for row, group in groupby(cells, key=lambda one: one.cell.row):
        levels = [one for one in group if first in one.of_seed]
        texts.append(
            [row, *(_crossing(levels, seeds, points, f"{prefix}masked", f"{prefix}{other}") for other, prefix in pairs)]
        )
    yield (
        f"Iso-accuracy sparsity, where {points:g} point{'s are' * (points != 1) or ' is'} lost "
        f"(± over up to {crossing['retrainings']} retrainings of the levels next to it):"
    )
    yield ""
    yield from page.table(
        ["line", *(f"{split}, against {name}" for name in ("dense", "continued dense") for split in SPLITS)], texts
    )


def _crossing(levels: Sequence[Measured], seeds: Sequence[int], points: float, masked: str, dense: str) -> str:
    first = seeds[0]

    def lost(line: Line) -> float:
        return 100 * (float(line[dense]) - float(line[masked]))

    def of_seed(one: Measured, seed: int) -> Line | None:
        """Its row of that seed, if it starts from the same dense network as the first seed's."""
        line = one.of_seed.get(seed)
        return line if line and line[DIGEST] == one.of_seed[first][DIGEST] else None

    levels = [one for one in levels if one.of_seed[first][dense] and one.of_seed[first][masked]]
    if not levels:
        return ""
    beyond = next((place for place, one in enumerate(levels) if lost(one.of_seed[first]) > points), len(levels))
    beside = levels[max(beyond - 1, 0) : beyond + 1]
    used = [seed for seed in seeds if all(of_seed(one, seed) for one in beside)]
    passes = []
    for seed in used:
        curve = [of_seed(one, seed) or one.of_seed[first] for one in levels]
        passes.append(_passed([(100 * float(line["sparsity_achieved"]), lost(line)) for line in curve], points))
    counted = f" ({len(used)} retraining{'s' * (len(used) > 1)})"
    numbers = [value for value, side in passes if not side]
    if len(numbers) < len(passes):
        return " or ".join(dict.fromkeys(f"{side} {round(value, 1):g} %".strip() for value, side in passes)) + counted
    return f"{mean(numbers):.1f}{f' ± {stdev(numbers):.1f}' if len(numbers) > 1 else ''} %{counted}"


def find_crossing(levels: Sequence[Measured], points: float, masked: str, dense: str) -> tuple[float, str]:
    """The sparsity, percent, at which the first seeds lose the points; or the level, with "above" or "below"."""
    lines = [one.first for one in levels]
    losses = [100 * (float(line[dense]) - float(line[masked])) for line in lines]
    return _passed([(100 * float(line["sparsity_achieved"]), loss) for line, loss in zip(lines, losses)], points)


def _passed(curve: Sequence[tuple[float, float]], points: float) -> tuple[float, str]:
    """The sparsity at which the points are lost; or the level that it is below or above."""
    for place, (sparsity, loss) in enumerate(curve):
        if loss > points:
            if place == 0:
                return sparsity, "below"
            start, before = curve[place - 1]
            return start + (sparsity - start) * (points - before) / (loss - before), ""
    return curve[-1][0], "above"


def _products(file: Path) -> Iterator[str]:
    """Speedups of single products by shape, pattern and sparsity, each of the fastest kernel; nothing without a file."""
    fastest: dict[tuple[str, str], dict[float, tuple[float, str]]] = {}
    for line in read_lines(file):
        if line["speedup"] and line["family"] != "dense":
            pattern = f"{line['pattern']} {line['granularity']}"
            if line["distribution"] not in ("", OWN_MASKS):
                pattern += f", {line['kernel']} on random masks ({line['distribution']})"
            achieved = float(line["sparsity"])
            level = round(float(line["asked_sparsity"] or achieved), 3)
            note = f" (has {100 * achieved:.3g} %)" if abs(achieved - level) > NEAR else ""
            of_level = fastest.setdefault((line["shape"], pattern), {})
            of_level[level] = max(of_level.get(level, (0.0, "")), (float(line["speedup"]), note))
    if fastest:
        levels = sorted({level for by_level in fastest.values() for level in by_level})
        head = ["product", "pattern", *(f"{100 * level:g} %" for level in levels), "faster than dense from"]
        texts = []
        for key, by_level in sorted(fastest.items()):
            slower = max((level for level, (speedup, _) in by_level.items() if speedup <= 1), default=0)
            start = next((f"{100 * level:g} %" for level in sorted(by_level) if level > slower), "never")
            texts.append(
                [
                    *key,
                    *(f"{by_level[level][0]:.2f}{by_level[level][1]}" if level in by_level else "" for level in levels),
                    start,
                ]
            )
        yield from ("## Products", "", *page.table(head, texts), "")
        yield from ("Speedup over the fastest dense product of the same process.", "")


def _checks(cells: Sequence[Measured]) -> Iterator[str]:
    """What sparse kernels change, and how far runs with retrained dense networks lie apart."""
    timed = [line for one in cells for line in one.timed.values() if line["sparse"]]
    pairs: dict[str, list[tuple[Line, Line]]] = {}
    for one in cells:
        pairs.setdefault(one.cell.network, []).extend(
            pair for pair in one.repeated if pair[0][DIGEST] != pair[1][DIGEST]
        )
    if timed or any(pairs.values()):
        yield from ("## Checks", "")
    if timed:
        apart = max(100 * abs(float(line["sparse"]) - float(line["masked"])) for line in timed)
        yield from (f"Sparse kernels change the metric by at most {apart:.2f} points ({len(timed)} timed).", "")
    texts = []
    for network, couples in pairs.items():
        if couples:
            points = [
                [100 * abs(float(one[name]) - float(two[name])) for one, two in couples]
                for name in ("val_masked", "masked")
            ]
            texts.append(
                [network, len(couples), *(f"{value(values):.2f}" for values in points for value in (median, max))]
            )
    if texts:
        head = ["retrained dense networks, points apart", "pairs", "val: median", "at most", "test: median", "at most"]
        yield from page.table(head, texts)


@paper_style
def draw(cells: Sequence[Measured], path: Path) -> bool:
    """A panel of test accuracy by sparsity for each network and table with several levels; False if there is none."""
    panels = []
    for (network, title), group in groupby(cells, key=lambda one: (one.cell.network, one.cell.table)):
        of_table = [one for one in group if one.of_seed]
        if len({one.cell.column for one in of_table if one.cell.column.endswith("%")}) > 2:
            panels.append((f"{title}: {network}", of_table))
    if not panels:
        return False
    figure = new_figure(len(panels))
    for axes, (title, of_table) in zip(figure.axes, panels):
        small_axes(axes, x="sparsity, %", y=f"{of_table[0].first['metric_name']} on test, %", title=title)
        for place, (row, group) in enumerate(groupby(of_table, key=lambda one: one.cell.row)):
            levels = list(group)
            axes.errorbar(
                [100 * float(one.first["sparsity_achieved"]) for one in levels],
                [mean(one.values("masked")) for one in levels],
                [stdev(one.values("masked")) if len(one.of_seed) > 1 else 0.0 for one in levels],
                color=pattern_color(levels[0].first["pattern"]),
                marker=MARKERS[place],
                label=row,
            )
        axes.axhline(mean(of_table[0].values("dense")), color=DENSE_COLOR, zorder=0, label="dense")
        axes.legend()
    save_svg(figure, path)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(
        file.parent.name for file in EXPERIMENTS.glob(f"*/{STUDY_FILE}") if (file.parent / "README.md").exists()
    )
    parser.add_argument("studies", nargs="*", default=names)
    parser.add_argument("--write", action="store_true", help="into the page, and the figure beside it")
    arguments = parser.parse_args()
    for name in arguments.studies:
        study = Study.read(name)
        cells = tabulate_seeds(study)
        text = "\n".join(tables(study, cells))
        print(text)
        if arguments.write:
            page.fill(EXPERIMENTS / name / "README.md", MARKS, text)
            draw(cells, EXPERIMENTS / name / PLOT)


if __name__ == "__main__":
    main()
