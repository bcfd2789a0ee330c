"""The tables of a study's page, in Markdown, and what is read from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from experiments.harness import page
from experiments.harness.page import number, spread
from experiments.splits.leak_probe import HERE as SPLITS
from experiments.splits.leak_probe import mean_of
from experiments.studies import definition
from experiments.studies.cells import DIGEST, FILE, Cell, Cells, Line, finalists, of_table, repeated_lines
from experiments.studies.definition import Point, Study, Table
from sparsefront.progress import counted
from sparsefront.results.store import read_lines

DAY = len("2026-11-24")
LEAST_SHORTFALL = 0.02  # of the sparsity: below it is rounding
DENSE = ("val_dense", "dense")
PROBE, BY_ROWS = "probe.csv", "rows"
METRICS = {"val": "val_masked", "test": "masked"}
PLAN, PRODUCTS = "products.plan", "products.csv"
GRADUAL_N_M_SINCE = "2026-11-29"  # before, n:m stood at fewer zeros until the last update of a gradual schedule
OWN_MASKS = "pattern"  # as `distribution`: made by the pattern itself
NEAR = 0.005  # a sparsity so far from what was asked for is told
HEAD = ["line", "", "block", "seeds", "val", "val − dense", "val − continued dense"]
HEAD += ["test", "test − dense", "test − continued dense", "speedup auto", "speedup sparse", "source"]


@dataclass(frozen=True)
class Block:
    """The lines of one dense network, where others of its seed are of another one.

    Args:
        seed: of the dense network.
        digest: of its weights.
        newest: whether the dense network that was trained last is this one.
        val, test: metric of the dense network, in per cent.
    """

    letter: str
    seed: int
    digest: str
    newest: bool
    val: float
    test: float


def blocks_of(study: Study, network: str, cells: Cells) -> dict[str, Block]:
    """Digest -> block, of the seeds with several dense networks; of each seed the newest comes first."""
    of_network = [(point, cell) for point, cell in cells.items() if point.network == network]
    lines = [(int(line["seed"]), line) for _, cell in of_network for line in cell.dense]
    newest = {line[DIGEST] for _, line in lines}
    lines += [(_dense_seed(study, point, line), line) for point, cell in of_network for line in cell.measured]
    of_seed: dict[int, dict[str, Line]] = {}
    for seed, line in lines:
        of_seed.setdefault(seed, {}).setdefault(line[DIGEST], line)
    several = [
        (seed, digest, line)
        for seed, found in sorted(of_seed.items())
        if len(found) > 1
        for digest, line in found.items()
    ]
    return {
        digest: Block(
            chr(ord("A") + place), seed, digest, digest in newest, *(100 * float(line[name]) for name in DENSE)
        )
        for place, (seed, digest, line) in enumerate(several)
    }


def mixed(blocks: Mapping[str, Block], cells: list[Cell]) -> dict[str, Block]:
    """The blocks that a table names: none where all of its lines are of the newest dense networks."""
    seen = {line[DIGEST] for cell in cells for line in cell.measured}
    seeds = {block.seed for block in blocks.values() if block.digest in seen and not block.newest}
    return {digest: block for digest, block in blocks.items() if block.seed in seeds}


def letters(blocks: Mapping[str, Block], cell: Cell) -> str:
    """Those of a cell's lines; "" of seeds with one dense network."""
    found = (line[DIGEST] for line in cell.measured)
    return ", ".join(sorted({blocks[digest].letter for digest in found if digest in blocks}))


def _dense_seed(study: Study, point: Point, line: Line) -> int:
    return definition.dense_point(study, replace(point, seed=int(line["seed"]))).seed


def table_lines(study: Study, table: Table, network: str, cells: Cells) -> Iterator[str]:
    """A table of one network: a line for each measured cell, and for each cell that the source has; then the names of the rest.

    Metrics in per cent, mean ± standard deviation over seeds; differences are to the dense network of the line's own seeds and
    block, and to the same continued for the same budget. Those networks come first. Columns without anything are left out.
    """
    found = of_table(cells, table, network)
    blocks = mixed(blocks_of(study, network, cells), [cell for _, cell in found])
    columns, texts = list(table.columns), []
    left: dict[str, None] = {}
    for point, cell in found:
        row, place = table.rows[point.row], columns.index(point.column)
        label = point.row + (f" ({row.note})" if row.note else "")
        source = _source(row.paper[place] if place < len(row.paper) else None)
        if cell.seeds == 0 and cell.unsupported is None and not source:
            left[point.row] = None
            continue
        texts.append([label, point.column + _short_of(cell), letters(blocks, cell), *_ours(cell), source])
    texts = [*_dense_texts([cell for _, cell in found], blocks), *texts]
    shown = [place for place in range(len(HEAD)) if any(text[place] for text in texts)]
    yield from page.table([HEAD[place] for place in shown], [[text[place] for place in shown] for text in texts])
    for seed in sorted({block.seed for block in blocks.values()}):
        count = sum(block.seed == seed for block in blocks.values())
        yield from ("", f"Seed {seed} has {count} dense networks: **compare within a block only**.")
    if left:
        measured = {text[0].partition(" (")[0] for text in texts}
        whole = ", ".join(f"`{row}`" for row in left if row not in measured)
        levels = ", ".join(f"`{row}`" for row in left if row in measured)
        yield from ("", f"*Not measured*: {'; '.join(filter(None, (whole, levels and f'other levels of {levels}')))}.")


def _source(value: float | str | None) -> str:
    """A metric with the two digits that the sources print; a difference as it is told."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) and value > 10 else str(value)


def _short_of(cell: Cell) -> str:
    """What the network has, where layers that do not fit keep it from the sparsity that was asked for; and whether its n:m masks
    were made by a wrong gradual schedule.
    """
    if cell.seeds == 0:
        return ""
    first = cell.measured[0]
    asked, achieved = (float(first[name]) for name in ("sparsity_target", "sparsity_achieved"))
    short = f" (has {100 * achieved:.0f} %)" if asked - achieved > LEAST_SHORTFALL else ""
    late = first["schedule"] == "gradual" and first["n_of_m"] and first["time"] < GRADUAL_N_M_SINCE
    return short + (" †" if late else "")


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


def _dense_texts(found: Sequence[Cell], blocks: Mapping[str, Block]) -> Iterator[list[str]]:
    """The dense networks of a table as its first lines: all seeds together, each block, and the same continued."""
    denses = {line["seed"]: line for cell in found for line in cell.dense}
    if denses:
        val, test = (spread([100 * float(line[name]) for line in denses.values()]) for name in DENSE)
        yield _metrics("dense", "", "", str(len(denses)), val, test)
    for block in blocks.values():
        yield _metrics("dense", f"seed {block.seed}", block.letter, "1", f"{block.val:.2f}", f"{block.test:.2f}")
    continued = [
        [100 * value for cell in found for line in cell.measured if (value := number(line, name)) is not None]
        for name in ("val_dense_continued", "dense_continued")
    ]
    if all(continued):
        val, test = (" to ".join(dict.fromkeys(f"{end(of):.2f}" for end in (min, max))) for of in continued)
        yield _metrics("continued dense", "", "", "", val, test)


def _metrics(label: str, column: str, block: str, seeds: str, val: str, test: str) -> list[str]:
    """A line of a table that has metrics and nothing else."""
    given = {"line": label, "": column, "block": block, "seeds": seeds, "val": val, "test": test}
    return [given.get(name, "") for name in HEAD]


def network_lines(study: Study, cells: Cells) -> Iterator[str]:
    """A table of the networks: samples, error of the metric, steps, and how many points have an accuracy and a latency."""
    head = ["network", "model and data", "metric", "samples of val", "of test", "standard error, test"]
    head += ["recovery steps", "points", "timed"]
    yield from page.table(head, [_network(name, cells) for name in study.networks])


def _network(name: str, cells: Cells) -> list[object]:
    of_network = [cell for point, cell in cells.items() if point.network == name]
    lines = [line for cell in of_network for line in cell.measured]
    # before there is a line nothing is known but what is asked for
    first = lines[0] if lines else {}
    error = first.get("dense_standard_error")
    facts = [first.get(key) or "" for key in ("metric_name", "val_evaluated_samples", "evaluated_samples")]
    facts.append(f"{100 * float(error):.2f}" if error else "")
    facts.append(", ".join(map(str, sorted({int(line["recovery_steps"]) for line in lines if line["recovery_steps"]}))))
    found = sum(bool(cell.accuracy) for cell in of_network)
    timed = sum(bool(cell.timed["auto"]) for cell in of_network)
    return [name, definition.networks()[name].title, *facts, f"{found} of {len(of_network)}", timed]


def timed_lines(cells: Cells) -> Iterator[str]:
    """How far the metric with the sparse kernels running is from that of the same weights in dense layers, and from that of the
    line beside it where that is another network; nothing where nothing is timed.
    """
    lines = _timed(cells)
    if not lines:
        return
    apart = max(100 * abs(float(line["sparse"]) - float(line["masked"])) for line in lines)
    points = counted(len(lines), "timed point")
    yield f"Sparse kernels change the metric by at most {apart:.2f} points ({points})."
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
        text = f"{len(anew)} of these networks {was} retrained from other dense weights"
        yield f"{text}: metrics differ by at most {val:.2f} (val) and {test:.2f} points (test)."


def words_lines(study: Study, cells: Cells) -> Iterator[str]:
    """A table of the networks that classify text: what a regression on 1- and 2-grams has, and the label of the nearest training
    text, on the split of the network's lines, in per cent. Nothing where there is no such network.
    """
    probe = read_lines(SPLITS / PROBE)
    found = []
    for name in study.networks:
        network = definition.networks()[name]
        task = next((text.partition("=")[2] for text in network.overrides if text.startswith("dataset.task=")), None)
        lines = [line for point, cell in cells.items() if point.network == name for line in cell.measured]
        split = next((line.get("dataset_split") or BY_ROWS for line in lines), None)  # lines of before name none
        if any((row["task"], row["split"]) == (task, split) for row in probe):
            places = [(part, column) for column in ("bigrams", "probe") for part in ("held out", "dev")]
            found.append([name, split, *(f"{mean_of(probe, task, split, *place):.1f}" for place in places)])
    if found:
        head = [
            "[word-only baseline](../splits/README.md)",
            "split",
            "1- and 2-grams: val",
            "test",
            "nearest text: val",
            "test",
        ]
        yield from page.table(head, found)


def measured_lines(cells: Cells, folder: Path) -> Iterator[str]:
    """A table of devices, versions and days of all lines; commit and device of each are columns of the CSV.

    Args:
        folder: of the products, where the study has any.
    """
    found = []
    if lines := [line for cell in cells.values() for line in cell.measured]:
        found.append(["accuracy", *_places(lines)])
    if timed := _timed(cells):
        batches, seeds = sorted({_batch(line) for line in timed}), sorted({line["seed"] for line in timed}, key=int)
        given = f"batches of {' and '.join(batches)}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        found.append([f"speedup end to end, {given}", *_places(timed)])
    if products := _timed_products(folder):
        found.append(["products", *_places(products, time="date", torch="torch")])
    yield from page.table(["measured", "on", "days"], found or [["nothing yet", "", ""]])


def _timed(cells: Cells) -> list[Line]:
    return [line for cell in cells.values() for timed in cell.timed.values() for line in timed if line["sparse"]]


def _batch(line: Line) -> str:
    length = line["sequence_length"]
    return line["batch_size"] + (f" samples of {length} tokens" if length else " images")


def _places(lines: Sequence[Line], *, time: str = "time", torch: str = "torch_version") -> tuple[str, str]:
    """Devices with dtype and version, and days, of some lines.

    Args:
        time, torch: columns that hold these.
    """
    devices = {
        f"{line['gpu'] or line.get('processor') or 'CPU'} ({line['dtype']}, torch {line[torch]})" for line in lines
    }
    days = sorted({line[time][:DAY] for line in lines})
    return " and ".join(sorted(devices)), " to ".join(dict.fromkeys((days[0], days[-1])))


def target_lines(study: Study, cells: Cells) -> Iterator[str]:
    """A table: of every column with a target the line that is chosen by val, and what it reaches on test.

    The first seed chooses the finalists, their means over all seeds the line. A target is open until each of them has all seeds
    of headlines.
    """
    yield "| network | column | best on val | of | seeds | steps | val | test | target | |"
    yield "|" + 10 * "---|"
    for network, targets in study.targets.items():
        for column, target in targets.items():
            places = finalists(study, cells, network, column)
            if not places:
                yield page.row([network, column, "no line yet", *[""] * 5, f"{target:g}", ""])
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
            candidates = sum(
                (point.network, point.column) == (network, column) and cell.seeds > 0 for point, cell in cells.items()
            )
            facts = [place.row, candidates, best.seeds, best.measured[0]["recovery_steps"]]
            facts += [best.text("val_masked"), best.text("masked"), f"{target:g}", verdict]
            yield page.row([network, column, *facts])


def repeat_lines(study: Study, folder: Path) -> Iterator[str]:
    """A table with a line for each network that has points of several dense networks of one seed, in points; none without any."""
    pairs: dict[str, list[tuple[Line, Line]]] = {}
    for (point, _), lines in repeated_lines(study, folder / FILE).items():
        *others, counted = lines
        told = [(line, counted) for line in others if line[DIGEST] != counted[DIGEST] and _measured(line, counted)]
        if told:
            pairs.setdefault(point.network, []).extend(told)
    if pairs:
        head = ["network", "pairs", *(text for split in METRICS for text in (f"{split}: median", "at most"))]
        yield from page.table(head, [_repeats(name, pairs[name]) for name in study.networks if name in pairs])


def _repeats(network: str, pairs: list[tuple[Line, Line]]) -> Iterator[object]:
    yield from (network, len(pairs))
    for metric in METRICS.values():
        points = [100 * abs(float(one[metric]) - float(other[metric])) for one, other in pairs]
        yield from (f"{median(points):.2f}", f"{max(points):.2f}")


def _measured(*lines: Line) -> bool:
    return all(line[metric] for line in lines for metric in METRICS.values())


def product_lines(folder: Path) -> Iterator[str]:
    """A table of shape by pattern: the fastest right kernel at each sparsity, and the sparsity from which on all that were
    measured are faster than dense.

    What runs on other masks than the pattern's, as a peer may, has lines of its own.
    """
    lines = _timed_products(folder)
    if not lines:
        yield "No product is timed yet."
        return
    fastest: dict[tuple[str, str], dict[float, float]] = {}
    notes: dict[tuple[str, str, float], str] = {}
    for line in lines:
        key = (line["shape"], _label(line))
        has = float(line["sparsity"])
        level = round(float(line["asked_sparsity"] or has), 3)
        of_key = fastest.setdefault(key, {})
        of_key[level] = max(of_key.get(level, 0.0), float(line["speedup"]))
        if abs(has - level) > NEAR:
            notes[*key, level] = f" (has {100 * has:.3g} %)"
    levels = sorted({level for found in fastest.values() for level in found})
    head = ["product", "pattern", *(f"{100 * level:g} %" for level in levels), "faster than dense from"]
    cells = []
    for (shape, pattern), found in sorted(fastest.items()):
        slower = max((level for level, speedup in found.items() if speedup <= 1), default=0)
        critical = next((f"{100 * level:g} %" for level in sorted(found) if level > slower), "never")
        speedups = [
            f"{found[level]:.2f}{notes.get((shape, pattern, level), '')}" if level in found else "" for level in levels
        ]
        cells.append([shape, pattern, *speedups, critical])
    yield from (*page.table(head, cells), "", "Speedup over the fastest dense product of the same process.")


def _timed_products(folder: Path) -> list[Line]:
    return [line for line in read_lines(folder / PRODUCTS) if line["speedup"] and line["family"] != "dense"]


def _label(line: dict[str, str]) -> str:
    name = f"{line['pattern']} {line['granularity']}"
    if line["distribution"] in ("", OWN_MASKS):
        return name
    return f"{name}, {line['kernel']} on random masks ({line['distribution']})"
