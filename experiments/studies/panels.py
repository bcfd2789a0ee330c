"""What is drawn of a study: a panel for each table of a network, with the series that its cells make."""

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.studies.cells import Cell, Cells, of_table
from experiments.studies.definition import Point, Study, Table
from sparsefront.results.plots import MARKERS

# Enough for the lines of any table: in one panel no marker stands for two.
SHAPES = (*(marker for marker, _ in MARKERS), "h", "d", "8", "*")

Entries = list[tuple[Point, Cell]]


@dataclass(frozen=True)
class Panel:
    """A table of one network, as far as it was measured; `empty`: the cells without an accuracy."""

    table: Table
    network: str
    measured: Entries
    empty: Entries

    @property
    def title(self) -> str:
        return f"{self.table.title}: {self.network}"

    @property
    def rows(self) -> list[str]:
        """The table's lines, in its order."""
        return list(dict.fromkeys(point.row for point, _ in self.measured))

    @property
    def columns(self) -> list[str]:
        """In the order of the table."""
        found = {point.column for point, _ in self.measured}
        return [column for column in self.table.columns if column in found]

    @property
    def by_sparsity(self) -> bool:
        """Whether accuracy is drawn by sparsity: of tables of levels, from two of them on, with a marker for each line."""
        return self.table.levels and len(self.columns) > 1 and len(self.rows) <= len(SHAPES)

    @property
    def metric(self) -> str:
        return self.measured[0][1].measured[0]["metric_name"]

    @property
    def standard_error(self) -> float | None:
        """Of the dense network's metric on test, in points; it says what one seed is worth."""
        return self.measured[0][1].per_cent("dense_standard_error")

    def series(self) -> dict[tuple[str, str], list[Cell]]:
        """(line, pattern) -> its cells by sparsity: what one line joins."""
        found: dict[tuple[str, str], list[Cell]] = {}
        for point, cell in self.measured:
            found.setdefault((point.row, pattern_of(cell)), []).append(cell)
        for cells in found.values():
            cells.sort(key=sparsity_of)
        return found


def panels(study: Study, cells: Cells) -> Iterator[Panel]:
    """Those with anything measured, network by network."""
    for network in study.networks:
        for table in study.tables:
            entries = of_table(cells, table, network)
            if measured := [(point, cell) for point, cell in entries if cell.seeds]:
                yield Panel(table, network, measured, [(point, cell) for point, cell in entries if not cell.seeds])


def pattern_of(cell: Cell) -> str:
    return cell.measured[0]["pattern"]


def sparsity_of(cell: Cell) -> float:
    """What the network has, in per cent."""
    return 100 * float(cell.measured[0]["sparsity_achieved"])
