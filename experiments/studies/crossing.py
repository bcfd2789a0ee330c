"""Where the lines of a table of levels have lost so much: their iso-accuracy sparsity, and the retrainings that it rests on."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from statistics import mean, stdev

from experiments.harness import page
from experiments.studies import definition
from experiments.studies.cells import DIGEST, Cell, Cells, Line, of_table
from experiments.studies.definition import Crossing, Point, Study, Table

Levels = list[tuple[Point, Cell]]  # of one line, by sparsity
BELOW, ABOVE = "below", "above"


@dataclass(frozen=True)
class Loss:
    """What is lost: the names of the pruned network's metric and of the one that it is compared with."""

    masked: str
    dense: str

    def of(self, line: Line) -> float:
        """Percentage points."""
        return 100 * (float(line[self.dense]) - float(line[self.masked]))


# network compared with -> split -> what is lost; the first of val decides what is retrained
LOSSES = {
    "dense": {"val": Loss("val_masked", "val_dense"), "test": Loss("masked", "dense")},
    "continued dense": {"val": Loss("val_masked", "val_dense_continued"), "test": Loss("masked", "dense_continued")},
}


def retrainings(study: Study, cells: Cells, networks: Container[str]) -> Iterator[Point]:
    """Further retrainings of the levels beside the crossing; of each line only when all its levels are done once."""
    first = study.first_seed
    for table, network in product(study.tables, study.networks):
        crossing = table.crossing_of(network)
        if crossing is None or network not in networks:
            continue
        for levels in _lines(table, network, cells):
            if len(levels) == len(table.columns) and all(_done(cell, first) for _, cell in levels):
                loss = LOSSES["dense"]["val"]
                for point, _ in _beside(_known(levels, loss, first), loss, crossing.points, first):
                    yield from definition.again(study, point, study.seeds_of(crossing))


def iso_head(crossing: Crossing) -> str:
    """What the lines of `iso_lines` are."""
    return (
        f"Iso-accuracy sparsity, where {crossing.points:g} point{'s are' if crossing.points != 1 else ' is'} lost, by "
        f"linear interpolation (± over up to {crossing.retrainings} retrainings of the levels next to it):"
    )


def iso_lines(study: Study, table: Table, network: str, cells: Cells) -> Iterator[str]:
    """A table: for every line the sparsity at which it loses the points of the crossing, against dense and against continued
    dense, on val and on test; none without a crossing.
    """
    crossing, first = table.crossing_of(network), study.first_seed
    if crossing is None:
        return
    texts = []
    for levels in _lines(table, network, cells):
        found = [
            _iso(study, crossing, _known(levels, loss, first), loss)
            for losses in LOSSES.values()
            for loss in losses.values()
        ]
        missing = [point.column for point, cell in levels if not cell.accuracy]
        if any(found):
            texts.append([levels[0][0].row, *found, ", ".join(missing)])
    if texts:
        head = [f"{split}, against {beside}" for beside, losses in LOSSES.items() for split in losses]
        yield from page.table(["line", *head, "missing levels"], texts)


def _iso(study: Study, crossing: Crossing, levels: Levels, loss: Loss) -> str:
    """The sparsity in words, "" without levels; several retrainings of those beside the crossing give a standard deviation."""
    if not levels:
        return ""
    points, first = crossing.points, study.first_seed
    beside = _beside(levels, loss, points, first)
    seeds = [
        seed for seed in study.seeds_of(crossing) if all(_of_one_reference(cell, seed, first) for _, cell in beside)
    ]
    found = [_passed(_curve(levels, loss, seed, first), points) for seed in seeds]
    numbers = [value for value, side in found if not side]
    counted = f" ({len(seeds)} retraining{'s' if len(seeds) > 1 else ''})"
    if len(numbers) < len(found):
        told = dict.fromkeys(f"{side} {round(value, 1):g} %".strip() for value, side in found)
        return " or ".join(told) + counted
    deviation = f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{mean(numbers):.1f}{deviation} %{counted}"


def _beside(levels: Levels, loss: Loss, points: float, first: int) -> Levels:
    """The levels between which the points are lost; one, where the first loses more or the last does not."""
    beyond = (place for place, (_, cell) in enumerate(levels) if loss.of(cell.of_seed(first)) > points)
    place = next(beyond, len(levels))
    return levels[max(place - 1, 0) : place + 1]


def _known(levels: Levels, loss: Loss, first: int) -> Levels:
    """Those with both accuracies of the first seed; a pattern may not have a level, a run no held-out part or no control."""
    wanted = (loss.masked, loss.dense)
    return [
        (point, cell) for point, cell in levels if None not in [cell.per_cent_of_seed(name, first) for name in wanted]
    ]


def _curve(levels: Levels, loss: Loss, seed: int, first: int) -> list[tuple[float, float]]:
    """(sparsity in per cent, points lost) by level, of a seed, and of the first one where that seed has no line."""
    lines = [cell.of_seed(seed if _of_one_reference(cell, seed, first) else first) for _, cell in levels]
    return [(100 * float(line["sparsity_achieved"]), loss.of(line)) for line in lines]


def _passed(curve: Sequence[tuple[float, float]], points: float) -> tuple[float, str]:
    """The sparsity at which the points are lost, by straight lines between levels; or the level that it is below or above."""
    before = None
    for sparsity, lost in curve:
        if lost > points:
            if before is None:
                return sparsity, BELOW
            start, lost_there = before
            return start + (sparsity - start) * (points - lost_there) / (lost - lost_there), ""
        before = sparsity, lost
    return curve[-1][0], ABOVE


def _of_one_reference(cell: Cell, seed: int, first: int) -> bool:
    """Whether there is a line of that seed, of the dense network that the first seed's line is of."""
    line = cell.of_seed(seed)
    return line is not None and line[DIGEST] == cell.of_seed(first)[DIGEST]


def _done(cell: Cell, seed: int) -> bool:
    """Whether it has a line, be it that there is no such network."""
    return any(int(line["seed"]) == seed for line in cell.accuracy)


def _lines(table: Table, network: str, cells: Cells) -> Iterator[Levels]:
    for _, group in groupby(of_table(cells, table, network), key=lambda entry: entry[0].row):
        yield list(group)
