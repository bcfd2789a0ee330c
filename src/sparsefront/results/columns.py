"""Columns of tables of results: their values, formatting, and missing cells."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefront.errors import InvalidSetting, closest
from sparsefront.progress import counted
from sparsefront.pruning.collapse import select_collapsed
from sparsefront.results.candidates import (
    Candidate,
    budget_of,
    is_unpadded,
    metric_of,
    points_lost,
    precision_of,
    smaller_first,
)
from sparsefront.results.field_types import holds_entries
from sparsefront.results.record import Result, result_fields
from sparsefront.results.run_folder import override_text


def percent(fraction: float | None) -> str:
    """Format a fraction in percent: 0.9722 -> "97.22 %"."""
    return "–" if fraction is None else f"{100 * fraction:.2f} %"


def milliseconds(value: float | None) -> str:
    """Format with three significant digits, as an integer from 100."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def points(value: float | None) -> str:
    """Percentage points."""
    return "–" if value is None else f"{value:.2f}"


def minutes(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def plain(value: Any) -> str:
    return "–" if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """One field as a column; a `constant_aside` column on which all results agree is shown next to the table instead.

    `of`: the quantity, if the field name does not say it: `dense` is headed "dense accuracy", or with the metric shared by all
    results. `get`: returns the value if it is not that of the field.
    """

    field: str
    text: Callable[[Any], str] = plain
    numeric: bool = False
    constant_aside: bool = True
    of: str | None = None
    get: Callable[[Result], Any] | None = None

    def heading(self, metric: str | None = None) -> str:
        """The heading: the field name, which `sort=` accepts, and its quantity.

        Args:
            metric: the metric shared by all results of the table; None if they differ.
        """
        return self.field if self.of is None else f"{self.field} {metric or self.of}"

    def value(self, result: Result) -> Any:
        """The value of this result."""
        return result.value_of(self.field) if self.get is None else self.get(result)

    def cell(self, result: Result) -> str:
        """The formatted value."""
        return self.text(self.value(result))

    def format_shared(self, result: Result) -> str:
        """The formatted value if all results agree on it."""
        return self.text(self.value(result))


@dataclass(frozen=True)
class QualityColumn(Column):
    """The quality of a network; its standard error is in `<field>_standard_error`."""

    numeric: bool = True
    of: str | None = "accuracy"

    def cell(self, result: Result) -> str:
        return metric_of(result).text(self.value(result), result.value_of(f"{self.field}_standard_error"))

    def format_shared(self, result: Result) -> str:
        return metric_of(result).text(self.value(result))


def find_collapsed(result: Result) -> dict[str, float]:
    """Collapsed layers -> density, also for records older than the field. Layers in removed blocks do not count, because the
    network works without them.
    """
    if result.choice.pattern == "depth":
        return {}
    return select_collapsed(result.sparsity.sparsity_per_layer, result.sparsity.sparsity_target)


def _dense_share(result: Result) -> float | None:
    """Share of the prunable weights in layers that stayed dense; unknown for records older than the field."""
    shares = result.sparsity.dense_weight_shares
    return None if result.sparsity.dense_layers and not shares else sum(shares.values())


def _own_recovery_seed(result: Result) -> int | None:
    again = result.identity.recovery_seed
    return None if again == result.identity.seed else again


def _gpu_minutes(result: Result) -> float | None:
    """Minutes of the run's stages, those of training once per GPU, without a dense network that was already trained; unknown on
    a CPU.
    """
    cost, devices = result.cost, result.choice.trainer_parameters.get("devices", 1)
    if result.identity.gpu is None or cost.measure_seconds is None or not isinstance(devices, int):
        return None
    training = [cost.recover_seconds, cost.dense_continued_seconds, cost.dense_distilled_seconds]
    training += [] if cost.dense_reused else [cost.train_dense_seconds]
    once = [cost.prune_seconds, cost.measure_seconds]
    return (devices * sum(filter(None, training)) + sum(filter(None, once))) / 60


# Fields for which higher is better are sorted descending; all others ascending.
MORE_IS_BETTER = {
    field.name
    for field in result_fields()
    if re.fullmatch(
        r"(val_)?(dense(_continued|_distilled|_low)?|masked|sparse)|sparse_\w+_share|sparsity_(achieved|target|whole_model)"
        r"|speedup.*|throughput_.*|tokens_per_s_.*",
        field.name,
    )
}

RUN = Column("run_id", constant_aside=False)
COLUMNS = (
    *map(Column, ("model", "model_variant", "dataset", "dataset_task", "dataset_split", "structured")),
    Column("pattern", constant_aside=False),
    *map(Column, ("granularity", "n_of_m")),
    Column("sparsity_achieved", fraction, numeric=True, constant_aside=False),
    Column(
        "collapsed_layers",
        numeric=True,
        get=lambda result: len(find_collapsed(result)) if result.sparsity.sparsity_per_layer else None,
    ),
    Column("dense_layers", percent, numeric=True, get=_dense_share),
    *map(Column, ("importance", "allocation", "schedule", "recovery", "recipe", "kernel_mode")),
    Column("recovery_steps", numeric=True),
    Column("seed", numeric=True, constant_aside=False),
    Column("recovery_seed", numeric=True, get=_own_recovery_seed),
    QualityColumn("dense", constant_aside=False),
    *map(QualityColumn, ("dense_continued", "dense_distilled", "dense_low")),
    *(QualityColumn(side, constant_aside=False) for side in ("masked", "sparse")),
    QualityColumn("val_sparse"),
    Column("points lost", points, numeric=True, constant_aside=False, get=points_lost),
    Column("evaluated_samples", numeric=True),
    *(Column(f"latency_{side}_ms", milliseconds, numeric=True, constant_aside=False) for side in ("dense", "sparse")),
    Column("speedup", times, numeric=True, constant_aside=False),
    Column("latency_dense_low_ms", milliseconds, numeric=True),
    Column("dense_low_precision"),
    Column("speedup_low_precision", times, numeric=True),
    *(Column(f"latency_{side}_dataset_ms", milliseconds, numeric=True) for side in ("dense", "sparse")),
    Column("speedup_dataset", times, numeric=True),
    Column("GPU minutes", minutes, numeric=True, get=_gpu_minutes),
    *map(Column, ("latency_device", "gpu", "processor", "threads")),
    Column("batch_size", numeric=True),
    Column("dtype"),
    Column("inference", get=lambda result: "unpadded" if is_unpadded(result) else None),
    Column("precision", get=precision_of),
    RUN,
    Column("latency_kernel"),  # last, because a list of several kernels is too long to put other columns after it
)


def choose_columns(results: Sequence[Result]) -> tuple[list[Column], dict[str, str]]:
    """The columns that this table needs, and field -> text of those on which all results agree."""
    aside = {
        column.field: column.format_shared(results[0])
        for column in COLUMNS
        if column.constant_aside
        for first in [column.value(results[0])]
        if all(column.value(result) == first for result in results)
    }
    shown = [column for column in COLUMNS if column.field not in aside]
    keys = _differing_settings(results)
    if keys:

        def settings(result: Result) -> str | None:
            """The parameters that differ between results with the same parts: `recovery.hardness=1.0`."""
            entries = ((part, key, result.value_of(f"{part}_parameters")) for part, key in keys)
            return (
                " ".join(override_text(f"{part}.{key}", held[key]) for part, key, held in entries if key in held)
                or None
            )

        shown.insert(shown.index(RUN), Column("settings", get=settings))
    return shown, {field: text for field, text in aside.items() if text != "–"}


def find_metric(results: Sequence[Result]) -> str | None:
    """The metric shared by all these results, in words; None if they differ."""
    names = {result.quality.metric_name for result in results}
    return names.pop().replace("_", " ") if len(names) == 1 else None


# part of the configuration -> its parameters that have a column of their own
PARTS: dict[str, set[str]] = {
    **{"model": {"variant", "size", "name"}, "dataset": {"task"}, "pattern": {"granularity"}, "importance": {"seed"}},
    **{part: set() for part in ("allocation", "schedule", "recovery", "recipe", "trainer")},
}


def _differing_settings(results: Sequence[Result]) -> tuple[tuple[str, str], ...]:
    """(part, parameter) pairs with different values in two results that chose the same option of the part."""
    values: dict[tuple[str, str], dict[Any, set[str]]] = {}
    for part, apart in PARTS.items():
        firsts: dict[Any, dict[str, Any]] = {}  # option -> parameters of its first result, which most share
        for result in results:
            option = None if part == "trainer" else result.value_of(part)  # there is one kind of trainer
            parameters = result.value_of(f"{part}_parameters")
            if option in firsts and firsts[option] == parameters:
                continue
            firsts.setdefault(option, parameters)
            for key, value in parameters.items():
                if key not in apart:
                    values.setdefault((part, key), {}).setdefault(option, set()).add(str(value))
    return tuple(key for key, options in values.items() if any(len(texts) > 1 for texts in options.values()))


def is_quality(name: str) -> bool:
    """Whether a field is a network's metric on either split, so that the metric defines what is better."""
    return any(isinstance(one, QualityColumn) and one.field == name.removeprefix("val_") for one in COLUMNS)


def sort_results(results: Sequence[Result], by: str) -> list[Result]:
    """Sort results by a field, best first; a leading "-" reverses the order; results without a value come last.

    Raises:
        InvalidSetting: no such field, or it is a mapping.
    """
    name = by.removeprefix("-")
    sortable = [field.name for field in result_fields() if not holds_entries(field.hint)]
    if name not in sortable:
        raise InvalidSetting("sort", by, f"no such column; closest are {closest(name, sortable)}")
    filled = [result for result in results if result.value_of(name) is not None]
    empty = [result for result in results if result.value_of(name) is None]

    def place(result: Result) -> tuple[bool, Any]:
        # A column may contain text and numbers (a granularity of 64 or "4x64"): numbers come first.
        value = result.value_of(name)
        return isinstance(value, str), metric_of(result).sign * value if is_quality(name) else value

    return sorted(filled, key=place, reverse=(name in MORE_IS_BETTER) != by.startswith("-")) + empty


# Number of runs in each cell of a study's grid of pattern and recovery by sparsity.

MISSING = "missing"
NAMED_WHERE_DIFFERENT = ("distribution", "importance", "allocation", "schedule")


def tabulate_seeds(candidates: Sequence[Candidate]) -> list[dict[str, str]]:
    """One line per pattern (with granularity or n:m) and recovery, one column per sparsity; `missing` if nothing was
    measured. Empty if there is no grid.

    Lines are further split by a pattern's distribution, importance, allocation and schedule if candidates differ in them.
    Candidates with a budget are not included, because their sparsity is a ceiling.
    """
    candidates = [candidate for candidate in candidates if budget_of(candidate.results[0]) is None]
    sparsities = sorted({candidate.sparsity for candidate in candidates})
    names = [name for name in NAMED_WHERE_DIFFERENT if len({_read_option(one, name) for one in candidates} - {""}) > 1]
    seeds: dict[tuple[str, ...], dict[float, set]] = {}
    for candidate in candidates:
        choice, first = candidate.results[0].choice, smaller_first(candidate.results[0])
        windows = choice.pattern_parameters.get("m")  # not n:m, which follows from the sparsity
        parts = (first, choice.pattern, choice.granularity, None if windows is None else f"m={windows}")
        pattern = " ".join(str(part) for part in parts if part is not None)
        line = pattern, *(_read_option(candidate, name) for name in names), candidate.recovery
        seeds.setdefault(line, {}).setdefault(candidate.sparsity, set()).update(candidate.seeds)
    if len(sparsities) < 2 or len(seeds) < 2:
        return []
    return [
        dict(zip(("pattern", *names, "recovery"), line, strict=True))
        | {f"sparsity {one:g}": counted(len(held[one]), "seed") if one in held else MISSING for one in sparsities}
        for line, held in sorted(seeds.items())
    ]


def _read_option(candidate: Candidate, name: str) -> str:
    """The chosen option; empty if there was none."""
    choice = candidate.results[0].choice
    chosen = choice.pattern_parameters.get(name) if name == "distribution" else getattr(choice, name)
    return chosen or ""
