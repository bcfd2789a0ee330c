"""The lines of a study, one per finished point, and its cells: what the page says of the lines of all seeds together."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.harness import rows, runs
from experiments.harness.page import number, speedup, spread
from experiments.studies import definition
from experiments.studies.definition import Point, Study, Table, every_point
from sparsefront.results import store

IDENTITY = tuple(field.name for field in fields(Point) if field.compare)
# of the result, by the names that it has in every record of the program
FACTS = tuple(
    "pattern granularity n_of_m recovery schedule sparsity_target sparsity_achieved metric_name val_dense "
    "val_dense_continued val_masked val_sparse dense dense_continued masked sparse dataset_split dense_standard_error "
    "masked_standard_error evaluated_samples val_evaluated_samples dense_steps recovery_steps latency_dense_ms "
    "latency_sparse_ms speedup speedup_low speedup_high sparse_flops_share batch_size sequence_length dtype gpu "
    "processor torch_version commit time dense_weights_sha256 run_id".split()
)
# overrides of all points, which stand behind a point's own
QUIET = (*runs.QUIET, "trainer.checkpoint=false")
ACCURACY = "none"  # the kernel option of points that are not timed
DIGEST = "dense_weights_sha256"
KERNEL, SECONDS, UNSUPPORTED, OVERRIDES = "kernel", "seconds", "unsupported", "overrides"
COLUMNS = (*IDENTITY, KERNEL, UNSUPPORTED, *FACTS, SECONDS, OVERRIDES)
FILE = "points.csv"

Line = dict[str, str]
Key = tuple[Point, str]  # a point, and the kernel option that it was run with


def read_lines(path: Path) -> dict[Key, Line]:
    """The lines of earlier calls; none where there is no file. Of a point that was run again the last one counts."""
    return {key: lines[-1] for key, lines in _all_lines(path).items()}


def current_lines(study: Study, path: Path) -> dict[Key, Line]:
    """The lines that were measured as the study says now; what it says of the trainer alone makes no other point. Of a point that
    was run again the last one counts.
    """
    return {key: lines[-1] for key, lines in _current_lines(study, path).items()}


def repeated_lines(study: Study, path: Path) -> dict[Key, list[Line]]:
    """All such lines of the points that were run again, the one that counts last."""
    return {key: lines for key, lines in _current_lines(study, path).items() if len(lines) > 1}


def _current_lines(study: Study, path: Path) -> dict[Key, list[Line]]:
    asked = {point: _settings(point.overrides) for point in every_point(study)}
    found = {}
    for key, lines in _all_lines(path).items():
        if current := [line for line in lines if _settings(_own_overrides(line)) == asked.get(key[0])]:
            found[key] = current
    return found


def _all_lines(path: Path) -> dict[Key, list[Line]]:
    lines: dict[Key, list[Line]] = {}
    for line in store.read_lines(path):
        lines.setdefault((point_of(line), line[KERNEL]), []).append(line)
    return lines


def _own_overrides(line: Line) -> Iterator[str]:
    """Those of the point itself, which stand in front."""
    return takewhile(lambda text: text != QUIET[0], shlex.split(line[OVERRIDES]))


def _settings(overrides: Iterable[str]) -> set[str]:
    return {text for text in overrides if not text.startswith("trainer.")}


def append_line(path: Path, point: Point, kernel: str, found: Mapping[str, Any], *, overrides: str) -> None:
    """Add one line; the first makes the file, and its folder.

    Args:
        found: facts by name, `seconds`, or `unsupported` with the reason; what is absent stays empty.
        overrides: of run.py, as one text: those of the point, then `QUIET` and whatever else the call gave.
    """
    line = {name: getattr(point, name) for name in IDENTITY} | {KERNEL: kernel, OVERRIDES: overrides} | dict(found)
    store.append_line(path, {name: rows.text(line.get(name)) for name in COLUMNS})


def point_of(line: Line) -> Point:
    """The point that a line is about."""
    return Point(**{name: int(line[name]) if name == "seed" else line[name] for name in IDENTITY})


FINALISTS = 2  # lines of each target that get further seeds


@dataclass(frozen=True)
class Cell:
    """The finished points of one network, table, line and column.

    Args:
        accuracy: line of each seed where nothing was timed.
        timed: kernel option -> line of each seed.
        dense: line of the dense network of each of these seeds, where there is one.
    """

    accuracy: tuple[Line, ...]
    timed: Mapping[str, tuple[Line, ...]]
    dense: tuple[Line, ...]

    @property
    def seeds(self) -> int:
        return len(self.measured)

    @cached_property
    def measured(self) -> tuple[Line, ...]:
        """Lines with an accuracy."""
        return tuple(line for line in self.accuracy if line["masked"])

    @property
    def unsupported(self) -> str | None:
        """Why there is no such network."""
        return next((line[UNSUPPORTED] for line in self.accuracy if line[UNSUPPORTED]), None)

    def seeds_among(self, seeds: Iterable[int]) -> int:
        """How many of these have an accuracy; retrainings at a crossing have others."""
        return sum(self.of_seed(seed) is not None for seed in seeds)

    def per_cent(self, name: str) -> float | None:
        """Mean of a metric over the seeds, in per cent; None where no line has it."""
        values = self._values(name)
        return mean(values) if values else None

    def of_seed(self, seed: int) -> Line | None:
        """The line with an accuracy of one seed."""
        return next((line for line in self.measured if int(line["seed"]) == seed), None)

    def per_cent_of_seed(self, name: str, seed: int) -> float | None:
        """A metric of one seed, in per cent."""
        value = number(self.of_seed(seed), name)
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
        pairs = [(number(line, name), number(line, other)) for line in self.measured]
        if not pairs or any(None in pair for pair in pairs):
            return None
        return mean(100 * (one - two) for one, two in pairs)

    def speed(self, kernel: str) -> str:
        """Speedup over the dense baseline of the same process, with its range; "" where it was not measured."""
        lines = [line for line in self.timed.get(kernel, ()) if line["speedup"]]
        if not lines:
            return ""
        device = "" if lines[0]["gpu"] else ", CPU reference"
        return f"{speedup(lines[0])[:-1]}{device})"

    def _values(self, name: str) -> list[float]:
        found = (number(line, name) for line in self.measured)
        return [100 * value for value in found if value is not None]


Cells = dict[Point, Cell]


def cells_of(study: Study, lines: Mapping[Key, Line]) -> Cells:
    """Every cell that a study makes or has a line of, by its point with the first seed; those without lines are empty."""
    found: Cells = {}
    planned = set(definition.points(study, seeds=[study.first_seed]))
    firsts = (point for point in every_point(study) if point.seed == study.first_seed and point.row != definition.DENSE)
    for point in firsts:
        if point not in planned and (point, ACCURACY) not in lines:
            continue
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


def _lines_of(lines: Mapping[Key, Line], points: list[Point], kernel: str) -> tuple[Line, ...]:
    return tuple(lines[point, kernel] for point in points if (point, kernel) in lines)
