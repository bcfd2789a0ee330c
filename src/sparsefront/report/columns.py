"""The columns that tables of several rows show, in the terminal and in the page, and how the values are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefront.errors import InvalidSetting
from sparsefront.pruning.collapse import collapsed_layers
from sparsefront.report.row import Row, leaves

# Leaves where more is better: sorted with the largest first; every other number starts with the smallest.
MORE_IS_BETTER = {
    "dense",
    "masked",
    "kernel",
    "speedup",
    "speedup_low",
    "speedup_high",
    "sparse_layer_share",
    "throughput_dense_samples_per_s",
    "throughput_sparse_samples_per_s",
    "sparse_flops_share",
    "sparsity_achieved",
    "sparsity_target",
    "sparsity_whole_model",
}


def percent(fraction: float | None) -> str:
    """A quality as people read it: 0.9722 -> "97.22 %"."""
    return "–" if fraction is None else f"{100 * fraction:.2f} %"


def milliseconds(value: float | None) -> str:
    """Three digits that count, whole numbers from 100 on."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def plain(value: Any) -> str:
    return "–" if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """One leaf as a column; a `constant_aside` column is left out, and told beside the table, where all rows agree.

    `error`: leaf of the value's standard error, in the same unit.
    """

    leaf: str
    text: Callable[[Any], str] = plain
    numeric: bool = False
    constant_aside: bool = False
    error: str | None = None

    def value(self, row: Row) -> Any:
        """What the cell of this row holds."""
        return row.leaf(self.leaf)

    def cell(self, row: Row) -> str:
        """The value in words, with its standard error where that is known."""
        text, error = self.text(self.value(row)), None if self.error is None else row.leaf(self.error)
        return text if error is None else f"{text.removesuffix(' %')} ± {self.text(error)}"


@dataclass(frozen=True)
class CollapsedColumn(Column):
    """How many layers collapsed, of records too that are older than the field."""

    def value(self, row: Row) -> int | None:
        sparsities = row.sparsity.sparsity_per_layer
        return len(collapsed_layers(sparsities, row.sparsity.sparsity_target)) if sparsities else None


@dataclass(frozen=True)
class SettingsColumn(Column):
    """The parameters in which rows of one table differ though they chose the same parts: `recovery.hardness=1.0`.

    `keys`: (part, parameter).
    """

    keys: tuple[tuple[str, str], ...] = ()

    def value(self, row: Row) -> str | None:
        found = ((part, key, row.leaf(f"{part}_parameters")) for part, key in self.keys)
        return " ".join(f"{part}.{key}={held[key]}" for part, key, held in found if key in held) or None


COLUMNS = (
    Column("model", constant_aside=True),
    Column("model_variant", constant_aside=True),
    Column("dataset", constant_aside=True),
    Column("dataset_task", constant_aside=True),
    Column("pattern"),
    Column("granularity", constant_aside=True),
    Column("n_of_m", constant_aside=True),
    Column("sparsity_achieved", fraction, numeric=True),
    CollapsedColumn("collapsed_layers", numeric=True, constant_aside=True),
    Column("importance", constant_aside=True),
    Column("allocation", constant_aside=True),
    Column("schedule", constant_aside=True),
    Column("recovery", constant_aside=True),
    Column("recipe", constant_aside=True),
    Column("kernel_mode", constant_aside=True),
    Column("seed", numeric=True),
    Column("dense", percent, numeric=True, error="dense_standard_error"),
    Column("masked", percent, numeric=True, error="masked_standard_error"),
    Column("kernel", percent, numeric=True, error="kernel_standard_error"),
    Column("evaluated_samples", numeric=True, constant_aside=True),
    Column("latency_dense_ms", milliseconds, numeric=True),
    Column("latency_sparse_ms", milliseconds, numeric=True),
    Column("speedup", times, numeric=True),
    Column("latency_device", constant_aside=True),
    Column("latency_kernel", constant_aside=True),
    Column("gpu", constant_aside=True),
    Column("processor", constant_aside=True),
    Column("threads", constant_aside=True),
    Column("batch_size", numeric=True, constant_aside=True),
    Column("dtype", constant_aside=True),
    Column("run_id"),
)


def shown_columns(rows: Sequence[Row]) -> tuple[list[Column], dict[str, str]]:
    """The columns that this table needs, and leaf -> text of those in which all rows agree."""
    aside = {
        column.leaf: column.text(column.value(rows[0]))
        for column in COLUMNS
        if column.constant_aside and len({column.value(row) for row in rows}) == 1
    }
    shown = [column for column in COLUMNS if column.leaf not in aside]
    if keys := _differing_settings(rows):
        shown.insert(-1, SettingsColumn("settings", keys=keys))  # before the run's name
    return shown, {leaf: text for leaf, text in aside.items() if text != "–"}


# part of the configuration -> its parameters that have a column of their own
PARTS: dict[str, set[str]] = {
    "model": {"variant", "size", "name"},
    "dataset": {"task"},
    "pattern": {"granularity"},
    "importance": {"seed"},
    "allocation": set(),
    "schedule": set(),
    "recovery": set(),
    "recipe": set(),
    "trainer": set(),
}


def _differing_settings(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """(part, parameter) of which two rows that chose the same option of the part hold different values."""
    values: dict[tuple[str, str], dict[Any, set[str]]] = {}
    for part, apart in PARTS.items():
        for row in rows:
            option = None if part == "trainer" else row.leaf(part)  # there is one kind of trainer
            for key, value in row.leaf(f"{part}_parameters").items():
                if key not in apart:
                    values.setdefault((part, key), {}).setdefault(option, set()).add(str(value))
    return tuple(key for key, options in values.items() if any(len(found) > 1 for found in options.values()))


def sort_rows(rows: Sequence[Row], by: str) -> list[Row]:
    """Rows by one leaf, the best first; a leading "-" turns the order round; rows without a value come last.

    Raises:
        InvalidSetting: no leaf has that name, or it holds a mapping.
    """
    name = by.removeprefix("-")
    sortable = [leaf.name for leaf in leaves() if "dict" not in str(leaf.hint)]
    if name not in sortable:
        raise InvalidSetting("sort", by, f"no such column; there are {', '.join(sortable)}")
    filled = [row for row in rows if row.leaf(name) is not None]
    empty = [row for row in rows if row.leaf(name) is None]

    def place(row: Row) -> tuple:
        # Text and numbers may meet in one column (a granularity of 64 or "4x64"): numbers come first.
        return isinstance(row.leaf(name), str), row.leaf(name)

    return sorted(filled, key=place, reverse=(name in MORE_IS_BETTER) != by.startswith("-")) + empty
