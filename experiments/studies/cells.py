"""What the page says of one cell: the lines of its seeds, taken together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, stdev

from experiments.studies import definition, rows
from experiments.studies.definition import Point, Study, Table
from experiments.studies.work import ACCURACY

FINALISTS = 2  # lines of each target that get further seeds


@dataclass(frozen=True)
class Cell:
    """The finished points of one network, table, line and column.

    Args:
        accuracy: line of each seed where nothing was timed.
        timed: kernel option -> line of each seed.
        dense: line of the dense network of each of these seeds, where there is one.
    """

    accuracy: tuple[rows.Line, ...]
    timed: Mapping[str, tuple[rows.Line, ...]]
    dense: tuple[rows.Line, ...]

    @property
    def seeds(self) -> int:
        return len(self.measured)

    @cached_property
    def measured(self) -> tuple[rows.Line, ...]:
        """Lines with an accuracy."""
        return tuple(line for line in self.accuracy if line["masked"])

    @property
    def unsupported(self) -> str | None:
        """Why there is no such network."""
        return next((line[rows.UNSUPPORTED] for line in self.accuracy if line[rows.UNSUPPORTED]), None)

    def seeds_among(self, seeds: Iterable[int]) -> int:
        """How many of these have an accuracy; retrainings at a crossing have others."""
        return sum(self.of_seed(seed) is not None for seed in seeds)

    def per_cent(self, name: str) -> float | None:
        """Mean of a metric over the seeds, in per cent; None where no line has it."""
        values = self._values(name)
        return mean(values) if values else None

    def of_seed(self, seed: int) -> rows.Line | None:
        """The line with an accuracy of one seed."""
        return next((line for line in self.measured if int(line["seed"]) == seed), None)

    def per_cent_of_seed(self, name: str, seed: int) -> float | None:
        """A metric of one seed, in per cent."""
        value = rows.number(self.of_seed(seed), name)
        return None if value is None else 100 * value

    def spread(self, name: str) -> float | None:
        """Standard deviation of a metric over the seeds, in points; None of fewer than two."""
        values = self._values(name)
        return stdev(values) if len(values) > 1 else None

    def text(self, name: str) -> str:
        """The mean as text, with the standard deviation of at least two seeds."""
        return spread(self._values(name))

    def difference(self, name: str, other: str) -> float | None:
        """Mean over the seeds of one metric minus another, in points; None where a line lacks one of them."""
        pairs = [(rows.number(line, name), rows.number(line, other)) for line in self.measured]
        if not pairs or any(None in pair for pair in pairs):
            return None
        return mean(100 * (one - two) for one, two in pairs)

    def speed(self, kernel: str) -> str:
        """Speedup over the dense baseline of the same process, with its interval; "" where it was not measured."""
        lines = [line for line in self.timed.get(kernel, ()) if line["speedup"]]
        if not lines:
            return ""
        line = lines[0]
        device = "" if line["gpu"] else ", CPU reference"
        return (
            f"{float(line['speedup']):.2f} ({float(line['speedup_low']):.2f}–{float(line['speedup_high']):.2f}{device})"
        )

    def _values(self, name: str) -> list[float]:
        found = (rows.number(line, name) for line in self.measured)
        return [100 * value for value in found if value is not None]


def spread(values: list[float]) -> str:
    """Their mean, with the standard deviation of at least two; "" of none."""
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


Cells = dict[Point, Cell]


def cells_of(study: Study, lines: Mapping[rows.Key, rows.Line]) -> Cells:
    """Every cell of a study, by its point with the first seed; those without lines are empty."""
    found: Cells = {}
    for point in definition.points(study, seeds=[study.first_seed]):
        of_seeds = [replace(point, seed=seed) for seed in study.seeds]
        denses = dict.fromkeys(definition.dense_point(study, one) for one in of_seeds)
        found[point] = Cell(
            _lines_of(lines, of_seeds, ACCURACY),
            {kernel: _lines_of(lines, of_seeds, kernel) for kernel in ("auto", "sparse")},
            tuple(lines[dense, ACCURACY] for dense in denses if (dense, ACCURACY) in lines),
        )
    return found


def of_table(cells: Cells, table: Table, network: str) -> list[tuple[Point, Cell]]:
    """The cells of one table of one network, line by line."""
    return [(point, cell) for point, cell in cells.items() if (point.table, point.network) == (table.title, network)]


def finalists(study: Study, cells: Cells, network: str, column: str) -> list[Point]:
    """The points with the first seed, best first, that are best on val in a column: its target is decided by these."""
    found = {
        point: value
        for point, cell in cells.items()
        if (point.network, point.column) == (network, column)
        and (value := cell.per_cent_of_seed("val_masked", study.first_seed)) is not None
    }
    return sorted(found, key=found.__getitem__, reverse=True)[:FINALISTS]


def _lines_of(lines: Mapping[rows.Key, rows.Line], points: list[Point], kernel: str) -> tuple[rows.Line, ...]:
    return tuple(lines[point, kernel] for point in points if (point, kernel) in lines)
