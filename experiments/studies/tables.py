"""The tables of a study's page, in Markdown, and what is read from them."""

from collections.abc import Iterator, Mapping

from blocks import Block, block_lines, blocks_of, letters, mixed  # beside this file
from cells import Cell, Cells, finalists, of_table, spread
from definition import Study, Table

LEAST_SHORTFALL = 0.02  # of the sparsity: below it is rounding
HEAD = (
    "line",
    "",
    "block",
    "seeds",
    "val",
    "test",
    "dense",
    "− dense",
    "dense, trained on",
    "− dense, trained on",
    "speedup auto",
    "speedup sparse",
    "source",
)


def table_lines(study: Study, table: Table, network: str, cells: Cells) -> Iterator[str]:
    """A table of one network: a line for each cell, the source's number beside it, also where ours is missing.

    Metrics in per cent, mean ± standard deviation over seeds; dense networks, and differences to them, on test, of the same
    seeds and blocks as the line. Columns in which no line has anything are left out.
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
    beside = []
    for other in ("dense", "dense_continued"):
        lost = cell.difference("masked", other)
        beside += [cell.text(other), "" if lost is None else f"{lost:+.2f}"]
    metrics = [cell.text("val_masked"), cell.text("masked")]
    return [str(cell.seeds), *metrics, *beside, cell.speed("auto"), cell.speed("sparse")]


def has_lines(table: Table, network: str, cells: Cells) -> bool:
    """Whether anything of it was measured, or found impossible."""
    return any(cell.accuracy for _, cell in of_table(cells, table, network))


def swap_line(cells: Cells) -> str | None:
    """How far the metric with the sparse kernels running is from that of the same weights in dense layers; None untimed."""
    lines = [line for cell in cells.values() for timed in cell.timed.values() for line in timed]
    apart = [100 * abs(float(line["sparse"]) - float(line["masked"])) for line in lines if line["sparse"]]
    if not apart:
        return None
    return f"With the sparse kernels running the metric differs by at most {max(apart):.2f} points ({len(apart)} timed points)."


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
    return f"{text}. {counts}. {_conditions(found, mixed(blocks_of(study, network, cells), found))}"


def _conditions(found: list[Cell], blocks: Mapping[str, Block]) -> str:
    """Where the lines of a table come from; several blocks of dense weights are said."""
    lines = [line for cell in found for line in cell.measured]
    if not lines:
        return ""
    places = sorted({f"{line['gpu'] or line['processor'] or 'CPU'}, torch {line['torch_version']}" for line in lines})
    steps = sorted({int(line["recovery_steps"]) for line in lines if line["recovery_steps"]})
    told = f"Measured on {'; '.join(places)}; steps of recovery: {', '.join(map(str, steps))}."
    for seed in sorted({block.seed for block in blocks.values()}):
        count = sum(block.seed == seed for block in blocks.values())
        told += f" **Lines of seed {seed} are of {count} dense networks: compare within a block only.**"
    return told


def bar_lines(study: Study, cells: Cells) -> Iterator[str]:
    """Of every column with a bar: which line is chosen by val, and what it reaches on test.

    The first seed chooses the finalists, their means over all seeds the line. A bar is open until each of them has all seeds.
    """
    for network, bars in study.bars.items():
        for column, bar in bars.items():
            places = finalists(study, cells, network, column)
            if not places:
                yield f"- {network}, {column}: no line yet (to reach: {bar:g})"
                continue
            wanted = len(study.headline_seeds)
            decided = all(cells[point].seeds == wanted for point in places)
            place = max(places, key=lambda point: cells[point].per_cent("val_masked")) if decided else places[0]
            best = cells[place]
            verdict = "reached" if best.per_cent("masked") >= bar else "not reached"
            if not decided:
                counts = ", ".join(f"*{point.row}* {cells[point].seeds}" for point in places)
                verdict += f" so far: of {wanted} seeds {'finalists have' if len(places) > 1 else 'it has'} {counts}"
            seeds = f"{best.seeds} seed{'s' if best.seeds > 1 else ''}"
            text = f"{best.text('val_masked')} on val, {best.text('masked')} on test"
            lines = sum(
                (point.network, point.column) == (network, column) and cell.seeds > 0 for point, cell in cells.items()
            )
            text += f" ({seeds}, {best.measured[0]['recovery_steps']} steps; {lines} lines to choose from)"
            yield f"- {network}, {column}: best on val is *{place.row}*, {text}; to reach {bar:g}: {verdict}"
