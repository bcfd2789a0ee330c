"""The tables of a study's page, in Markdown, and what is read from them."""

from collections.abc import Iterator, Mapping, Sequence

import rows  # beside this file
from blocks import Block, block_lines, blocks_of, letters, mixed
from cells import Cell, Cells, finalists, of_table, spread
from definition import Study, Table
from work import DIGEST

from sparsefront.counted import counted

DAY, COMMIT_DIGITS = len("2026-11-24"), 7
LEAST_SHORTFALL = 0.02  # of the sparsity: below it is rounding
HEAD = (
    "line",
    "",
    "block",
    "seeds",
    "val",
    "val − dense",
    "val − trained on",
    "test",
    "test − dense",
    "test − trained on",
    "speedup auto",
    "speedup sparse",
    "source",
)


def table_lines(study: Study, table: Table, network: str, cells: Cells) -> Iterator[str]:
    """A table of one network: a line for each cell, the source's number beside it, also where ours is missing.

    Metrics in per cent, mean ± standard deviation over seeds; differences are to the dense network of the line's own seeds and
    block, and to the same trained on for the same budget. Columns in which no line has anything are left out.
    """
    found = of_table(cells, table, network)
    blocks = mixed(blocks_of(study, network, cells), [cell for _, cell in found])
    columns, texts = list(table.columns), []
    for point, cell in found:
        row, place = table.rows[point.row], columns.index(point.column)
        label = point.row + (f" ({row.note})" if row.note else "")
        source = _source(row.paper[place] if place < len(row.paper) else None)
        texts.append([label, point.column + _short_of(cell), letters(blocks, cell), *_ours(cell), source])
    shown = [place for place in range(len(HEAD)) if any(text[place] for text in texts)]
    yield f"| {' | '.join(HEAD[place] for place in shown)} |"
    yield "|" + "---|" * len(shown)
    for text in texts:
        yield f"| {' | '.join(text[place] for place in shown)} |"
    if blocks:
        yield from ("", *block_lines(blocks))


def _source(value: float | str | None) -> str:
    """A metric with the two digits that the sources print; a difference as it is told."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) and value > 10 else str(value)


def _short_of(cell: Cell) -> str:
    """What the network has, where layers that do not fit keep it from the sparsity that was asked for."""
    if cell.seeds == 0:
        return ""
    asked, found = (float(cell.measured[0][name]) for name in ("sparsity_target", "sparsity_achieved"))
    return f" (has {100 * found:.0f} %)" if asked - found > LEAST_SHORTFALL else ""


def _ours(cell: Cell) -> list[str]:
    if cell.seeds == 0:
        return ["0", *(["missing"] if cell.unsupported is None else [f"unsupported: {cell.unsupported}"]), *[""] * 7]
    metrics = []
    for split in ("val_", ""):
        metrics.append(cell.text(f"{split}masked"))
        for other in ("dense", "dense_continued"):
            lost = cell.difference(f"{split}masked", f"{split}{other}")
            metrics.append("" if lost is None else f"{lost:+.2f}")
    return [str(cell.seeds), *metrics, cell.speed("auto"), cell.speed("sparse")]


def has_lines(table: Table, network: str, cells: Cells) -> bool:
    """Whether anything of it was measured, or found impossible."""
    return any(cell.accuracy for _, cell in of_table(cells, table, network))


def timed_lines(cells: Cells) -> Iterator[str]:
    """What the speedups of the tables are of; how far the metric with the sparse kernels running is from that of the same weights
    in dense layers, and from that of the line beside it where that is another network; nothing where nothing is timed.
    """
    lines = [line for cell in cells.values() for timed in cell.timed.values() for line in timed if line["sparse"]]
    if not lines:
        return
    batches = sorted({_batch(line) for line in lines})
    seeds = sorted({line["seed"] for line in lines}, key=int)
    told = f"Speedups are end to end, over the fastest dense version of the same process ({_places(lines)}; batches of "
    yield told + f"{' and '.join(batches)}; seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)})."
    apart = max(100 * abs(float(line["sparse"]) - float(line["masked"])) for line in lines)
    points = counted(len(lines), "timed point")
    yield f"With the sparse kernels running the metric differs by at most {apart:.2f} points ({points})."
    if anew := [
        (line, beside)
        for cell in cells.values()
        for timed in cell.timed.values()
        for line in timed
        if line["sparse"] and (beside := cell.of_seed(int(line["seed"]))) and beside[DIGEST] != line[DIGEST]
    ]:
        val, test = (
            max(100 * abs(float(line[name]) - float(beside[name])) for line, beside in anew)
            for name in ("val_masked", "masked")
        )
        was = "was" if len(anew) == 1 else "were"
        told = f"{len(anew)} of these networks {was} trained anew, from other dense weights than the line beside the speedup"
        yield f"{told}: the metrics lie at most {val:.2f} (val) and {test:.2f} points (test) apart."


def _batch(line: rows.Line) -> str:
    length = line["sequence_length"]
    return line["batch_size"] + (f" samples of {length} tokens" if length else " images")


def dense_text(study: Study, table: Table, network: str, cells: Cells) -> str | None:
    """One sentence on the dense network of each seed, and where the lines come from; None where it has no line yet."""
    found = [cell for _, cell in of_table(cells, table, network)]
    of_seed = {line["seed"]: line for cell in found for line in cell.dense}
    if not of_seed:
        return None
    line = next(iter(of_seed.values()))
    val, test = (spread([100 * float(one[name]) for one in of_seed.values()]) for name in ("val_dense", "dense"))
    seeds = f" ({len(of_seed)} seeds)" if len(of_seed) > 1 else ""
    text = f"Dense{seeds}: val {val}, test {test} ({line['metric_name']})"
    if errors := line["dense_standard_error"]:
        text += f", whose standard error is {100 * float(errors):.2f}"
    counts = f"{line['val_evaluated_samples']} samples of val, {line['evaluated_samples']} of test"
    return f"{text}.{_trained_on(found)} {counts}. {_conditions(found, mixed(blocks_of(study, network, cells), found))}"


def _trained_on(found: list[Cell]) -> str:
    """The control: one for each rate, seed and block; "" where no line has one."""
    told = []
    for split, name in (("val", "val_dense_continued"), ("test", "dense_continued")):
        values = [
            100 * value for cell in found for line in cell.measured if (value := rows.number(line, name)) is not None
        ]
        if values:
            ends = dict.fromkeys(f"{end(values):.2f}" for end in (min, max))
            told.append(f"{split} {' to '.join(ends)}")
    return f" Trained on for the budget of a line: {', '.join(told)}." if told else ""


def _conditions(found: list[Cell], blocks: Mapping[str, Block]) -> str:
    """Where the lines of a table come from; several blocks of dense weights are said."""
    lines = [line for cell in found for line in cell.measured]
    if not lines:
        return ""
    steps = sorted({int(line["recovery_steps"]) for line in lines if line["recovery_steps"]})
    told = f"Measured on {_places(lines)}; steps of recovery: {', '.join(map(str, steps))}."
    for seed in sorted({block.seed for block in blocks.values()}):
        count = sum(block.seed == seed for block in blocks.values())
        told += f" **Lines of seed {seed} are of {count} dense networks: compare within a block only.**"
    return told


def _places(lines: Sequence[rows.Line]) -> str:
    """Device, dtype, version, days and commits of some lines."""
    places = sorted(
        {
            f"{line['gpu'] or line['processor'] or 'CPU'}, {line['dtype']}, torch {line['torch_version']}"
            for line in lines
        }
    )
    days = sorted({line["time"][:DAY] for line in lines})
    commits = sorted({line["commit"][:COMMIT_DIGITS] for line in lines})
    told = f"{'; '.join(places)}; {' to '.join(dict.fromkeys((days[0], days[-1])))}, "
    return told + f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}"


def target_lines(study: Study, cells: Cells) -> Iterator[str]:
    """Of every column with a target: which line is chosen by val, and what it reaches on test.

    The first seed chooses the finalists, their means over all seeds the line. A target is open until each of them has all seeds
    of headlines.
    """
    for network, targets in study.targets.items():
        for column, target in targets.items():
            places = finalists(study, cells, network, column)
            if not places:
                yield f"- {network}, {column}: no line yet (to reach: {target:g})"
                continue
            wanted = len(study.headline_seeds)
            had = {point: cells[point].seeds_among(study.headline_seeds) for point in places}
            decided = all(count == wanted for count in had.values())
            place = max(places, key=lambda point: cells[point].per_cent("val_masked")) if decided else places[0]
            best = cells[place]
            verdict = "reached" if best.per_cent("masked") >= target else "not reached"
            if not decided:
                counts = ", ".join(f"*{point.row}* {count}" for point, count in had.items())
                verdict += f" so far: of {wanted} seeds {'finalists have' if len(places) > 1 else 'it has'} {counts}"
            seeds = f"{best.seeds} seed{'s' if best.seeds > 1 else ''}"
            text = f"{best.text('val_masked')} on val, {best.text('masked')} on test"
            lines = sum(
                (point.network, point.column) == (network, column) and cell.seeds > 0 for point, cell in cells.items()
            )
            text += f" ({seeds}, {best.measured[0]['recovery_steps']} steps; {lines} lines to choose from)"
            yield f"- {network}, {column}: best on val is *{place.row}*, {text}; to reach {target:g}: {verdict}"
