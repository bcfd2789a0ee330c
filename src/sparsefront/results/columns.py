"""The columns of tables of results: what they hold, how values are written, which cells are missing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefront.errors import InvalidSetting, closest
from sparsefront.patterns.depth import Depth
from sparsefront.progress import counted
from sparsefront.pruning.collapse import collapsed_layers
from sparsefront.results.candidates import Candidate, budget_of, metric_of, points_lost, precision_of
from sparsefront.results.record import SPEEDUPS_LOW, Result, result_fields
from sparsefront.results.run_folder import override_text

# What a column of a table of results holds, and how its values are written.


def percent(fraction: float | None) -> str:
    """A fraction as people read it: 0.9722 -> "97.22 %"."""
    return "–" if fraction is None else f"{100 * fraction:.2f} %"


def milliseconds(value: float | None) -> str:
    """Three digits that count, whole numbers from 100 on."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def points(value: float | None) -> str:
    """Percentage points."""
    return "–" if value is None else f"{value:.2f}"


def fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def plain(value: Any) -> str:
    return "–" if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """One field as a column; a `constant_aside` column is left out, and told beside the table, where all results agree.

    `of`: what the value is, where the field's name does not
    tell: `dense` is headed "dense accuracy", or with the name of the metric that all results share.
    """

    field: str
    text: Callable[[Any], str] = plain
    numeric: bool = False
    constant_aside: bool = False
    of: str | None = None

    def heading(self, metric: str | None = None) -> str:
        """Above the column: the field's name, which `sort=` takes, and what it is the value of.

        Args:
            metric: name of the metric of all results of the table; None where they differ.
        """
        return self.field if self.of is None else f"{self.field} {metric or self.of}"

    def value(self, result: Result) -> Any:
        """What the cell of this result holds."""
        return result.value_of(self.field)

    def cell(self, result: Result) -> str:
        """The value in words."""
        return self.text(self.value(result))

    def shared(self, result: Result) -> str:
        """The value in words where all results agree in it."""
        return self.text(self.value(result))


def collapsed_in(result: Result) -> dict[str, float]:
    """The layers that collapsed -> the density that they keep, of records too that are older than the field. Layers of whole
    blocks that were taken out have not: the network does without them.
    """
    if result.choice.pattern == Depth.name:
        return {}
    return collapsed_layers(result.sparsity.sparsity_per_layer, result.sparsity.sparsity_target)


@dataclass(frozen=True)
class QualityColumn(Column):
    """The quality of one network, by its field; `<field>_standard_error` is how sure it is."""

    def cell(self, result: Result) -> str:
        return metric_of(result).text(self.value(result), result.value_of(f"{self.field}_standard_error"))

    def shared(self, result: Result) -> str:
        return metric_of(result).text(self.value(result))


@dataclass(frozen=True)
class CollapsedColumn(Column):
    """How many layers collapsed."""

    def value(self, result: Result) -> int | None:
        return len(collapsed_in(result)) if result.sparsity.sparsity_per_layer else None


@dataclass(frozen=True)
class DenseShareColumn(Column):
    """Which part of the prunable weights lies in layers that stayed dense; unknown of records older than the field."""

    def value(self, result: Result) -> float | None:
        shares = result.sparsity.dense_weight_shares
        return None if result.sparsity.dense_layers and not shares else sum(shares.values())


@dataclass(frozen=True)
class RecoverySeedColumn(Column):
    """The seed of a recovery that has one of its own."""

    def value(self, result: Result) -> int | None:
        again = result.identity.recovery_seed
        return None if again == result.identity.seed else again


@dataclass(frozen=True)
class PrecisionColumn(Column):
    """Of the products with the prunable weights, of records too that are older than the field."""

    def value(self, result: Result) -> str | None:
        return precision_of(result)


@dataclass(frozen=True)
class PointsLostColumn(Column):
    """Against the dense network trained on for the same budget, where there is one; of perplexity how many percent it is more."""

    def value(self, result: Result) -> float | None:
        return points_lost(result)


@dataclass(frozen=True)
class SettingsColumn(Column):
    """The parameters in which results of one table differ though they chose the same parts: `recovery.hardness=1.0`.

    `keys`: (part, parameter).
    """

    keys: tuple[tuple[str, str], ...] = ()

    def value(self, result: Result) -> str | None:
        found = ((part, key, result.value_of(f"{part}_parameters")) for part, key in self.keys)
        return " ".join(override_text(f"{part}.{key}", held[key]) for part, key, held in found if key in held) or None


# Fields where more is better: sorted with the largest first; every other number starts with the smallest.
MORE_IS_BETTER = {
    "dense",
    "dense_continued",
    "val_dense_continued",
    "dense_distilled",
    "val_dense_distilled",
    "masked",
    "sparse",
    "dense_low",
    "val_dense_low",
    "val_dense",
    "val_masked",
    "val_sparse",
    "speedup",
    "speedup_low",
    "speedup_high",
    "speedup_dataset",
    "speedup_dataset_low",
    "speedup_dataset_high",
    *SPEEDUPS_LOW,
    "speedup_low_precision_dataset",
    "speedup_low_precision_dataset_low",
    "speedup_low_precision_dataset_high",
    "throughput_dense_low_samples_per_s",
    "sparse_layer_share",
    "throughput_dense_samples_per_s",
    "throughput_sparse_samples_per_s",
    *("tokens_per_s_dense", "tokens_per_s_sparse", "tokens_per_s_dense_low"),
    "sparse_flops_share",
    "sparsity_achieved",
    "sparsity_target",
    "sparsity_whole_model",
}

RUN = Column("run_id")
COLUMNS = (
    Column("model", constant_aside=True),
    Column("model_variant", constant_aside=True),
    Column("dataset", constant_aside=True),
    Column("dataset_task", constant_aside=True),
    Column("dataset_split", constant_aside=True),
    Column("pattern"),
    Column("granularity", constant_aside=True),
    Column("n_of_m", constant_aside=True),
    Column("sparsity_achieved", fraction, numeric=True),
    CollapsedColumn("collapsed_layers", numeric=True, constant_aside=True),
    DenseShareColumn("dense_layers", percent, numeric=True, constant_aside=True),
    Column("importance", constant_aside=True),
    Column("allocation", constant_aside=True),
    Column("schedule", constant_aside=True),
    Column("recovery", constant_aside=True),
    Column("recipe", constant_aside=True),
    Column("kernel_mode", constant_aside=True),
    Column("recovery_steps", numeric=True, constant_aside=True),
    Column("seed", numeric=True),
    RecoverySeedColumn("recovery_seed", numeric=True, constant_aside=True),
    QualityColumn("dense", numeric=True, of="accuracy"),
    *(
        QualityColumn(control, numeric=True, constant_aside=True, of="accuracy")
        for control in ("dense_continued", "dense_distilled", "dense_low")
    ),
    QualityColumn("masked", numeric=True, of="accuracy"),
    QualityColumn("sparse", numeric=True, of="accuracy"),
    QualityColumn("val_sparse", numeric=True, constant_aside=True, of="accuracy"),
    PointsLostColumn("points lost", points, numeric=True),
    Column("evaluated_samples", numeric=True, constant_aside=True),
    Column("latency_dense_ms", milliseconds, numeric=True),
    Column("latency_sparse_ms", milliseconds, numeric=True),
    Column("speedup", times, numeric=True),
    Column("latency_dense_low_ms", milliseconds, numeric=True, constant_aside=True),
    Column("dense_low_precision", constant_aside=True),
    Column("speedup_low_precision", times, numeric=True, constant_aside=True),
    Column("latency_dense_dataset_ms", milliseconds, numeric=True, constant_aside=True),
    Column("latency_sparse_dataset_ms", milliseconds, numeric=True, constant_aside=True),
    Column("speedup_dataset", times, numeric=True, constant_aside=True),
    Column("latency_device", constant_aside=True),
    Column("gpu", constant_aside=True),
    Column("processor", constant_aside=True),
    Column("threads", constant_aside=True),
    Column("batch_size", numeric=True, constant_aside=True),
    Column("dtype", constant_aside=True),
    PrecisionColumn("precision", constant_aside=True),
    RUN,
    # the last: of several kernels it is so long that others would stand far away
    Column("latency_kernel", constant_aside=True),
)


def shown_columns(results: Sequence[Result]) -> tuple[list[Column], dict[str, str]]:
    """The columns that this table needs, and field -> text of those in which all results agree."""
    aside = {
        column.field: column.shared(results[0])
        for column in COLUMNS
        if column.constant_aside and _agree(column, results)
    }
    shown = [column for column in COLUMNS if column.field not in aside]
    if keys := _differing_settings(results):
        shown.insert(shown.index(RUN), SettingsColumn("settings", keys=keys))
    return shown, {field: text for field, text in aside.items() if text != "–"}


def _agree(column: Column, results: Sequence[Result]) -> bool:
    """Whether all hold the same; stops at the first that does not."""
    first = column.value(results[0])
    return all(column.value(result) == first for result in results)


def shared_metric(results: Sequence[Result]) -> str | None:
    """The metric of all these results, in words; None where they differ."""
    names = {result.quality.metric_name for result in results}
    return names.pop().replace("_", " ") if len(names) == 1 else None


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


def _differing_settings(results: Sequence[Result]) -> tuple[tuple[str, str], ...]:
    """(part, parameter) of which two results that chose the same option of the part hold different values."""
    values: dict[tuple[str, str], dict[Any, set[str]]] = {}
    for part, apart in PARTS.items():
        firsts: dict[Any, dict[str, Any]] = {}  # option -> the parameters met first, which most results share
        for result in results:
            option = None if part == "trainer" else result.value_of(part)  # there is one kind of trainer
            parameters = result.value_of(f"{part}_parameters")
            if option in firsts and firsts[option] == parameters:
                continue
            firsts.setdefault(option, parameters)
            for key, value in parameters.items():
                if key not in apart:
                    values.setdefault((part, key), {}).setdefault(option, set()).add(str(value))
    return tuple(key for key, options in values.items() if any(len(found) > 1 for found in options.values()))


def is_quality(name: str) -> bool:
    """Whether a field holds the metric of a network, of either split: then the metric says which end is better."""
    return any(isinstance(one, QualityColumn) and one.field == name.removeprefix("val_") for one in COLUMNS)


def sort_results(results: Sequence[Result], by: str) -> list[Result]:
    """Results by one field, the best first; a leading "-" turns the order round; results without a value come last.

    Raises:
        InvalidSetting: no field has that name, or it holds a mapping.
    """
    name = by.removeprefix("-")
    sortable = [field.name for field in result_fields() if "dict" not in str(field.hint)]
    if name not in sortable:
        raise InvalidSetting("sort", by, f"no such column; closest are {closest(name, sortable)}")
    filled = [result for result in results if result.value_of(name) is not None]
    empty = [result for result in results if result.value_of(name) is None]

    def place(result: Result) -> tuple:
        # Text and numbers may meet in one column (a granularity of 64 or "4x64"): numbers come first.
        value = result.value_of(name)
        return isinstance(value, str), metric_of(result).sign * value if is_quality(name) else value

    return sorted(filled, key=place, reverse=(name in MORE_IS_BETTER) != by.startswith("-")) + empty


# Which cells of a study's grid, pattern with recovery by sparsity, hold how many runs.

MISSING = "missing"
NAMED_WHERE_DIFFERENT = ("distribution", "importance", "allocation", "schedule")


def measured_cells(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    """One line per pattern (with granularity or n:m) and recovery, one column per sparsity; `missing` where nothing was
    measured. Empty where there is no grid.

    Distribution of a pattern, importance, allocation and schedule tell lines apart too, each where two candidates chose
    it differently. What was given a budget is no cell: its sparsity is a ceiling.
    """
    candidates = [candidate for candidate in candidates if budget_of(candidate.results[0]) is None]
    sparsities = sorted({candidate.sparsity for candidate in candidates})
    named = [name for name in NAMED_WHERE_DIFFERENT if len({_chosen(one, name) for one in candidates} - {""}) > 1]
    seeds: dict[tuple[str, ...], dict[float, set]] = {}
    for candidate in candidates:
        line = _pattern(candidate), *(_chosen(candidate, name) for name in named), candidate.recovery
        of_line = seeds.setdefault(line, {})
        of_line.setdefault(candidate.sparsity, set()).update(candidate.seeds)
    if len(sparsities) < 2 or len(seeds) < 2:
        return []
    return [
        dict(zip(("pattern", *named, "recovery"), line, strict=True))
        | {f"sparsity {sparsity:g}": _cell(held.get(sparsity, ())) for sparsity in sparsities}
        for line, held in sorted(seeds.items())
    ]


def _pattern(candidate: Candidate) -> str:
    """Without n:m, which follows from the sparsity where it was not chosen."""
    choice = candidate.results[0].choice
    windows = choice.pattern_parameters.get("m")
    parts = (choice.pattern, choice.granularity, None if windows is None else f"m={windows}")
    return " ".join(str(part) for part in parts if part is not None)


def _chosen(candidate: Candidate, name: str) -> str:
    """Empty where there was nothing to choose."""
    choice = candidate.results[0].choice
    chosen = choice.pattern_parameters.get(name) if name == "distribution" else getattr(choice, name)
    return chosen or ""


def _cell(seeds: Sequence) -> str:
    return counted(len(seeds), "seed") if seeds else MISSING
