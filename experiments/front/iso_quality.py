"""The answer of the plan: speedup at equal quality by training budget, with its contrasts, from packed records.

    python -m experiments.front.iso_quality --records packed --write

Rows of a recovery give losses, in blocks of one seed; rows with `speedup_dataset` give speeds, of the same lines and maybe of
masks made anew. What may not be ranked is named and left out.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import log
from pathlib import Path
from statistics import fmean

import numpy as np

from experiments.front.summary import FRONT, PAGE
from experiments.harness import page
from experiments.harness.figures import MARKERS, new_figure, paper_style, save_svg, small_axes
from sparsefront.points import read_points
from sparsefront.progress import counted
from sparsefront.results.candidates import (
    is_pruned,
    low_precision_of,
    side_of,
    smaller_first,
    speedup_interval,
)
from sparsefront.results.comparable import model_text, task_text
from sparsefront.results.record import Result
from sparsefront.results.statistics import LEAST_SEEDS, OutcomesOf
from sparsefront.results.store import read_results
from sparsefront.results.study_blocks import split_off_invalid

MARKS = ("<!-- iso-quality -->", "<!-- end of iso-quality -->")
TUNING_SEED = 100  # is not reported
BUDGETS, BATCH = {782: "B1", 3125: "B4", 12500: "B16", 50000: "B64"}, 32  # steps, and texts of a step
STEPS = {name: steps for steps, name in BUDGETS.items()}
LOSSES = (0.25, 0.5, 1.0)  # points
ALLOWED = 0.5  # points, for non-inferiority
BEST = 3  # lines of each kind that get the next budget
DRAWS, CHUNK = 10_000, 250
SIGMAS_OF_INTERVAL = 3.92  # 95 %, from end to end
DENSE, COMPOSED = ("depth", "channel"), "composed"
CONTROL = "dense_distilled"


@dataclass(frozen=True)
class Line:
    """A line of the plan: the structure of its network, whatever it was trained with.

    Args:
        first: how it was made smaller before `pattern` pruned it, "depth 0.5 +"; None if it was not.
        size: granularity, or n:m.
    """

    pattern: str
    sparsity: float
    size: str | None = None
    first: str | None = None

    @classmethod
    def of(cls, result: Result) -> "Line":
        size = result.sparsity.n_of_m or result.choice.granularity
        text = None if size is None else str(size)
        return cls(result.choice.pattern, result.sparsity.sparsity_target, text, smaller_first(result))

    @classmethod
    def of_point(cls, overrides: Sequence[str]) -> "Line":
        values = {"sparsity": "0", "structured.sparsity": "0"} | dict(text.split("=", 1) for text in overrides)
        first, sparsity = values.get("structured"), float(values["sparsity"])
        amount = float(values["structured.sparsity"])
        if values["pattern"] == "dense":
            return cls(str(first), amount)
        m = values.get("pattern.m")
        size = values.get("granularity") if m is None else f"{round(int(m) * (1 - sparsity))}:{m}"
        return cls(values["pattern"], sparsity, size, None if first is None else f"{first} {amount:g} +")

    @property
    def family(self) -> str:
        return self.pattern if self.first is None else COMPOSED

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.first, self.pattern, self.size, f"{self.sparsity:g}") if part)


DEPTH_67, WIDTH_50, TWO_OF_FOUR = Line("depth", 0.67), Line("channel", 0.5), Line("n_m", 0.5, "2:4")
BLOCKS_75, TILES_75 = Line("block_wise", 0.75, "64x128"), Line("tile_wise", 0.75, "128")
LOSS_CONTRASTS = (
    (TWO_OF_FOUR, WIDTH_50),
    (Line("block_wise", 0.5, "64x128", "depth 0.5 +"), DEPTH_67),
    (BLOCKS_75, TILES_75),
)


@dataclass(frozen=True, eq=False)
class Block:
    """One seed of all lines of a budget.

    Args:
        lost: line -> float32 [texts], points that it lost against the block's control on each text of test.
        rows: line -> its result.
        control: accuracy of the control on test.
    """

    seed: int
    lost: dict[Line, np.ndarray]
    rows: dict[Line, Result]
    control: float


def blocks_of(results: Sequence[Result], outcomes_of: OutcomesOf) -> tuple[dict[int, list[Block]], list[str]]:
    """Recovery steps -> complete blocks by seed, and a line for each block that is left out.

    A block is complete if it has each line that any block of its budget has, once, and outcomes of each and of its control,
    which is that of the depth lines. Results that `split_off_invalid` names do not reach any block.
    """
    counting, reasons = split_off_invalid(results)
    trained = [
        row for row in counting if is_pruned(row) and row.cost.recovery_steps and row.identity.seed != TUNING_SEED
    ]
    blocks: dict[int, list[Block]] = {}
    for steps, of_budget in _group_sorted(trained, lambda row: row.cost.recovery_steps):
        lines = {Line.of(row) for row in of_budget}
        for seed, rows in _group_sorted(of_budget, lambda row: row.identity.seed):
            try:
                blocks.setdefault(steps, []).append(_block(seed, rows, lines, outcomes_of))
            except ValueError as error:
                reasons.append(f"seed {seed}, {counted(steps, 'step')}: not ranked, {error}")
    return {steps: of_budget for steps, of_budget in blocks.items() if of_budget}, reasons


def _group_sorted(rows: Sequence[Result], key: Callable[[Result], int]) -> Iterator[tuple[int, list[Result]]]:
    for value, members in groupby(sorted(rows, key=key), key):
        yield value, list(members)


def _block(seed: int, rows: Sequence[Result], lines: set[Line], outcomes_of: OutcomesOf) -> Block:
    by_line = {Line.of(row): row for row in rows}
    if len(by_line) < len(rows):
        raise ValueError(f"{counted(len(rows), 'result')} of {counted(len(by_line), 'line')}")
    missing = sorted(str(line) for line in lines - by_line.keys())
    if missing:
        raise ValueError(f"{counted(len(missing), 'line')} missing: {', '.join(missing)}")
    outcomes = {line: outcomes_of(row) or {} for line, row in by_line.items()}
    with_control = [line for line in lines if CONTROL in outcomes[line]]
    owners = [line for line in with_control if line.family == "depth"] or with_control
    controls = {by_line[line].identity.dense_distilled_weights_sha256 for line in owners}
    if len(controls) != 1:
        raise ValueError(f"outcomes of {counted(len(controls), 'control')}")
    control = outcomes[owners[0]][CONTROL]
    lost = {}
    for line, row in by_line.items():
        own = outcomes[line].get(side_of(row))
        if own is None or own.samples != control.samples:
            raise ValueError(f"{line} has {'no outcomes' if own is None else 'outcomes of other texts'}")
        if row.value_of(f"val_{side_of(row)}") is None:
            raise ValueError(f"{line} has no held-out {row.quality.metric_name}")
        lost[line] = 100 * (control.values.astype(np.float32) - own.values.astype(np.float32))
    return Block(seed, lost, by_line, float(control.values.mean()))


def best_points(blocks: Sequence[Block], points: Sequence[Sequence[str]]) -> list[list[str]]:
    """The points of the next budget: of smaller dense, and of sparse and composed lines, the `BEST` on held-out rows.

    Args:
        points: overrides of the lines, in whose order the best are returned.
    Raises:
        ValueError: none of them would train the control.
    """
    order = sorted(blocks[0].lost, key=lambda line: -_held_out(blocks, line))
    kinds = [[line for line in order if (line.family in DENSE) == is_dense][:BEST] for is_dense in (True, False)]
    best = [list(point) for point in points if Line.of_point(point) in sum(kinds, [])]
    if all("control=null" in point for point in best):
        raise ValueError("the block would have no control: each of its lines has control=null")
    return best


def points_file(points: Sequence[Sequence[str]], header: str) -> str:
    """Text of a file for sweep.points."""
    return "".join([f"{header}\n", *(f"- [{', '.join(point)}]\n" for point in points)])


@dataclass(frozen=True)
class Timing:
    """Speedup of a line in one process over the fastest dense network in 16 bits, as a logarithm with its standard deviation."""

    log_speedup: float
    deviation: float


def timings_of(results: Sequence[Result]) -> tuple[dict[Line, dict[str, list[Timing]]], set[Line]]:
    """Line -> precision -> one timing a process, and the lines whose trained masks were not timed: masks of the same rule were.

    Batches are of `BATCH` texts. A process has dense networks of its own; between fp16 and bf16 the faster one, by the mean of
    all processes, counts.
    """
    on_gpu = [row for row in results if row.speed.latency_device == "cuda" and row.speed.batch_size == BATCH]
    timed = [row for row in on_gpu if row.speed.speedup_dataset is not None]
    by_dtype: dict[str, list[float]] = {}
    for row in timed:
        by_dtype.setdefault(row.speed.dtype, []).append(log(row.speed.latency_dense_dataset_ms))
    dense = {dtype: fmean(values) for dtype, values in by_dtype.items()}
    timings: dict[Line, dict[str, list[Timing]]] = {}
    anew = set()
    pruned = [row for row in timed if is_pruned(row)]
    for line in dict.fromkeys(map(Line.of, pruned)):
        rows = [row for row in pruned if Line.of(row) == line]
        trained = [row for row in rows if row.cost.recovery_steps]
        anew |= set() if trained else {line}
        for row in trained or rows:
            ends = speedup_interval(row, "speedup_dataset")
            deviation = 0.0 if ends is None else log(ends[1] / ends[0]) / SIGMAS_OF_INTERVAL
            over_fastest = log(row.speed.speedup_dataset) + min(dense.values()) - dense[row.speed.dtype]
            precision = low_precision_of(row) or row.speed.dtype
            timings.setdefault(line, {}).setdefault(precision, []).append(Timing(over_fastest, deviation))
    return timings, anew


@dataclass(frozen=True, eq=False)
class Draws:
    """As measured in row 0, then in each resampling of texts, seed blocks and timing processes together.

    Args:
        lost: line -> [1 + draws], points.
        speed: line -> [1 + draws], log speedup of its faster 16-bit version; timed lines alone.
    """

    lost: dict[Line, np.ndarray]
    speed: dict[Line, np.ndarray]
    low: dict[Line, np.ndarray] = field(default_factory=dict)

    def at_equal_quality(self, loss: float) -> dict[str, np.ndarray]:
        """Family -> [1 + draws], its log speedup at a loss; families without a timed line are absent."""
        families: dict[str, list[Line]] = {}
        for line in self.speed:
            if line in self.lost:
                families.setdefault(line.family, []).append(line)
        return {
            family: iso_speed(*(np.stack([side[line] for line in lines], 1) for side in (self.lost, self.speed)), loss)
            for family, lines in families.items()
        }

    def iso_quality(self, loss: float) -> np.ndarray | None:
        """[1 + draws]: log speedup of the best sparse or composed family over the best smaller dense one; None if either is
        not timed.
        """
        speeds = self.at_equal_quality(loss)
        dense = [speeds[family] for family in speeds if family in DENSE]
        sparse = [speeds[family] for family in speeds if family not in DENSE]
        return np.max(sparse, axis=0) - np.max(dense, axis=0) if dense and sparse else None


def iso_speed(lost: np.ndarray, speed: np.ndarray, loss: float) -> np.ndarray:
    """Log speedup of a family at a loss, between neighbors of its front, linear in the loss; the control is at (0, 0).

    Beyond its last line a family has that line's speed: nothing is extrapolated.

    Args:
        lost, speed: [draws, lines].
        loss: at least 0.
    Returns:
        [draws].
    """
    control = np.zeros((len(lost), 1))
    lost, speed = np.hstack([control, lost]), np.hstack([control, speed])
    order = np.lexsort((-speed, lost))  # of equals the one on the front is first
    lost, speed = (np.take_along_axis(values, order, 1) for values in (lost, speed))
    rows = np.arange(len(lost))
    before = np.where(lost <= loss, speed, -np.inf).argmax(1)
    start, reached = lost[rows, before], speed[rows, before]
    faster = (lost > loss) & (speed > reached[:, None])
    after = np.where(faster, lost, np.inf).argmin(1)
    ahead = faster[rows, after]
    width = np.where(ahead, lost[rows, after] - start, 1.0)
    return reached + np.where(ahead, (loss - start) / width * (speed[rows, after] - reached), 0.0)


def resample(
    blocks: Sequence[Block], timings: Mapping[Line, Mapping[str, Sequence[Timing]]], *, draws: int = DRAWS
) -> Draws:
    """Resample texts, blocks and timing processes together; the generator's seed is fixed.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13 (percentiles).
    """
    random = np.random.default_rng(0)
    lines = list(blocks[0].lost)
    points = np.stack([block.lost[line] for block in blocks for line in lines])  # [blocks * lines, texts]
    texts, shape = points.shape[1], (-1, len(blocks), len(lines))
    chosen = random.integers(len(blocks), size=(draws, len(blocks)))
    lost = [points.mean(1, dtype=np.float64).reshape(shape).mean(1)]
    for begin in range(0, draws, CHUNK):
        picks = chosen[begin : begin + CHUNK]
        counts = np.stack([np.bincount(random.integers(texts, size=texts), minlength=texts) for _ in picks])
        of_blocks = (counts.astype(np.float32) @ points.T / texts).reshape(shape)
        lost.append(np.take_along_axis(of_blocks, picks[:, :, None], 1).mean(1))
    speeds: tuple[dict[Line, np.ndarray], dict[Line, np.ndarray]] = {}, {}
    for line, by_precision in timings.items():
        drawn = {name: _draw_speed(ones, draws, random) for name, ones in by_precision.items()}
        for is_low, speed in enumerate(speeds):
            versions = [values for name, values in drawn.items() if (name not in ("fp16", "bf16")) == bool(is_low)]
            if versions:
                speed[line] = np.max(versions, axis=0)
    return Draws(dict(zip(lines, np.concatenate(lost).T)), *speeds)


def _draw_speed(timings: Sequence[Timing], draws: int, random: np.random.Generator) -> np.ndarray:
    values, deviations = (np.array([getattr(one, name) for one in timings]) for name in ("log_speedup", "deviation"))
    picks = random.integers(len(values), size=(draws, len(values)))
    drawn = values[picks] + deviations[picks] * random.normal(size=picks.shape)
    return np.concatenate([[values.mean()], drawn.mean(1)])


def two_sided(values: np.ndarray) -> float:
    """p of "differs from 0" by resampling; `values` as in `Draws`."""
    drawn = values[1:]
    fewer = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return min(1.0, 2 * (float(fewer) + 1) / (len(drawn) + 1))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p of each contrast that was named in advance; those not measured count as 1 and stay None.

    Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979.
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted


def is_non_inferior(lost: np.ndarray) -> bool:
    """Whether the one-sided 95 % bound of a loss is at most `ALLOWED`; `lost` as in `Draws`."""
    return float(np.quantile(lost[1:], 0.95)) <= ALLOWED


Study = Mapping[str, tuple[Sequence[Block], Draws]]
"""Budget -> its blocks and draws."""


def contrasts_of(study: Study) -> Iterator[tuple[str, str, np.ndarray | None]]:
    """(what, budget, [1 + draws] or None if not measured) of the six named contrasts."""
    draws = {budget: drawn for budget, (_, drawn) in study.items()}
    for budget in ("B4", "B1", "B16"):
        values = draws[budget].iso_quality(0.5) if budget in draws else None
        yield "log of the iso-quality speedup at 0.5 points", budget, values
    for first, second in LOSS_CONTRASTS:
        lost = draws["B4"].lost if "B4" in draws else {}
        values = lost[first] - lost[second] if first in lost and second in lost else None
        yield f"points lost by {first} minus those by {second}", "B4", values


def tables(study: Study, anew: set[Line]) -> Iterator[str]:
    """Lines of Markdown: losses and speeds of each budget, iso-quality speedups, contrasts."""
    for budget, (blocks, drawn) in study.items():
        control = page.spread([100 * block.control for block in blocks])
        few = "" if len(blocks) >= LEAST_SEEDS else "; with so few, intervals are too narrow"
        yield f"{budget}, {counted(len(blocks), 'seed block')}{few}, control {control} % on test:"
        head = ("line", "held out", "lost, test (95 %)", f"at most {ALLOWED}", "speedup (95 %)", "in fp8")
        order = sorted(drawn.lost, key=lambda line: -_held_out(blocks, line))
        yield from ("", *page.table(head, [_cells(line, blocks, drawn, line in anew) for line in order]), "")
    rows = []
    for budget, (_, drawn) in study.items():
        for loss in LOSSES:
            ratio = drawn.iso_quality(loss)
            if ratio is not None:
                speeds = drawn.at_equal_quality(loss)
                sides = [{name: speeds[name] for name in speeds if (name in DENSE) == dense} for dense in (True, False)]
                best = [max(side, key=lambda name: side[name][0]) for side in sides]
                cells = [f"{name} {_times(speeds[name])}" for name in best]
                rows.append((budget, f"{loss:g}", *cells, _times(ratio), f"{two_sided(ratio):.4f}"))
    head = ("budget", "points lost", "best smaller dense", "best sparse or composed", "iso-quality speedup", "p")
    yield from (*page.table(head, rows), "")
    contrasts = list(contrasts_of(study))
    p_values = [None if values is None else two_sided(values) for *_, values in contrasts]
    rows = [
        (what, budget, *("not measured",) * 2)
        if values is None or p is None
        else (what, budget, f"{values[0]:.2f} ({_ends(values, '{:.2f}')})", f"{p:.4f}")
        for (what, budget, values), p in zip(contrasts, holm(p_values))
    ]
    yield from page.table(("contrast named in advance", "budget", "difference (95 %)", "p after Holm"), rows)


def _held_out(blocks: Sequence[Block], line: Line) -> float:
    return fmean(block.rows[line].value_of(f"val_{side_of(block.rows[line])}") for block in blocks)


def _cells(line: Line, blocks: Sequence[Block], drawn: Draws, anew: bool) -> tuple[str, ...]:
    lost, mark = drawn.lost[line], " †" if anew else ""
    speed, low = (_times(values[line]) + mark if line in values else "–" for values in (drawn.speed, drawn.low))
    loss = f"{lost[0]:.2f} ({_ends(lost, '{:.2f}')})"
    return str(line), f"{100 * _held_out(blocks, line):.2f}", loss, "yes" if is_non_inferior(lost) else "", speed, low


def _ends(values: np.ndarray, form: str) -> str:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{form.format(low)} to {form.format(high)}"


def _times(values: np.ndarray) -> str:
    return f"{np.exp(values[0]):.2f}× ({_ends(np.exp(values), '{:.2f}')})"


@paper_style
def draw(studies: Mapping[str, Study], path: Path) -> Path:
    """Iso-quality speedup by training budget, a panel for each task; bars are 95 % intervals. Raises ValueError without any."""
    figure = new_figure(len(studies))
    for axes, (task, study) in zip(figure.axes, studies.items(), strict=True):
        for place, loss in enumerate(LOSSES):
            ratios = {budget: drawn.iso_quality(loss) for budget, (_, drawn) in study.items() if budget in STEPS}
            known = {STEPS[budget]: np.exp(ratio) for budget, ratio in ratios.items() if ratio is not None}
            ends = [np.abs(np.quantile(one[1:], [0.025, 0.975]) - one[0]) for one in known.values()]
            if known:
                x = [BATCH * count * 1.04 ** (place - 1) / 1000 for count in known]  # side by side
                y, bars = [one[0] for one in known.values()], np.transpose(ends)
                axes.errorbar(x, y, yerr=bars, marker=MARKERS[place], label=f"{loss:g} points lost")
        if not axes.lines:
            raise ValueError(f"{task}: no iso-quality speedup")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.legend()
        small_axes(axes, x="thousand texts of recovery", y="speedup at equal quality", title=task, powers_of_two="x")
        thousands = {budget: BATCH * STEPS[budget] / 1000 for budget in study if budget in STEPS}
        axes.set_xticks(list(thousands.values()), [f"{count:.0f} ({budget})" for budget, count in thousands.items()])
    return save_svg(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, nargs="+", required=True, help="of one task, or their folders")
    parser.add_argument("--next", type=Path, help="file for the lines of B16, by the held-out rows of B4")
    parser.add_argument("--write", action="store_true", help="into the page, and the figure")
    arguments = parser.parse_args()
    reading = read_results(arguments.records)
    tasks = sorted({f"{model_text(row)} on {task_text(row)}" for row in reading.results})
    if len(tasks) > 1:
        parser.error(f"records of {len(tasks)} tasks: {', '.join(tasks)}")
    blocks, reasons = blocks_of(reading.results, reading.outcomes_of)
    timings, anew = timings_of(reading.results)
    untimed = sorted({str(line) for (block, *_) in blocks.values() for line in block.lost if line not in timings})
    reasons += [f"not timed, so in no speedup: {', '.join(untimed)}"] if untimed else []
    for line in [*reading.problems, *reasons]:
        print(line, file=sys.stderr)
    if not blocks:
        parser.error(f"no complete seed block in {', '.join(map(str, arguments.records))}")
    study = {BUDGETS.get(steps, f"{steps} steps"): (ones, resample(ones, timings)) for steps, ones in blocks.items()}
    text = "\n".join(tables(study, anew))
    print(text)
    if arguments.next is not None:
        try:
            points = best_points(blocks[STEPS["B4"]], read_points(FRONT / "lines.yaml"))
        except (KeyError, ValueError) as error:
            parser.error("no complete seed block of B4" if isinstance(error, KeyError) else str(error))
        header = "# The lines of lines.yaml that were best on held-out rows at B4."
        arguments.next.write_text(points_file(points, header), encoding="utf-8")
    if arguments.write:
        page.fill(PAGE, MARKS, text)
        draw({reading.results[0].choice.dataset: study}, FRONT / "iso_quality.svg")


if __name__ == "__main__":
    main()
