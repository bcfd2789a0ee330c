"""The columns that tables of several results show, in the terminal and in the page, and how the values are written."""

from collections.abc import Sequence
from typing import Any

from sparsefront.errors import InvalidSetting
from sparsefront.report.column_kinds import (
    CollapsedColumn,
    Column,
    DenseShareColumn,
    PointsLostColumn,
    RecoverySeedColumn,
    SettingsColumn,
    fraction,
    milliseconds,
    percent,
    points,
    times,
)
from sparsefront.report.renamed_fields import new_name
from sparsefront.report.result import Result, result_fields

# Fields where more is better: sorted with the largest first; every other number starts with the smallest.
MORE_IS_BETTER = {
    "dense",
    "dense_continued",
    "val_dense_continued",
    "masked",
    "sparse",
    "val_dense",
    "val_masked",
    "val_sparse",
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

RUN = Column("run_id")
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
    Column("dense", percent, numeric=True, error="dense_standard_error", of="accuracy"),
    Column(
        "dense_continued",
        percent,
        numeric=True,
        constant_aside=True,
        error="dense_continued_standard_error",
        of="accuracy",
    ),
    Column("masked", percent, numeric=True, error="masked_standard_error", of="accuracy"),
    Column("sparse", percent, numeric=True, error="sparse_standard_error", of="accuracy"),
    Column("val_sparse", percent, numeric=True, constant_aside=True, error="val_sparse_standard_error", of="accuracy"),
    PointsLostColumn("points lost", points, numeric=True),
    Column("evaluated_samples", numeric=True, constant_aside=True),
    Column("latency_dense_ms", milliseconds, numeric=True),
    Column("latency_sparse_ms", milliseconds, numeric=True),
    Column("speedup", times, numeric=True),
    Column("latency_device", constant_aside=True),
    Column("gpu", constant_aside=True),
    Column("processor", constant_aside=True),
    Column("threads", constant_aside=True),
    Column("batch_size", numeric=True, constant_aside=True),
    Column("dtype", constant_aside=True),
    RUN,
    # the last: of several kernels it is so long that others would stand far away
    Column("latency_kernel", constant_aside=True),
)


def shown_columns(results: Sequence[Result]) -> tuple[list[Column], dict[str, str]]:
    """The columns that this table needs, and field -> text of those in which all results agree."""
    aside = {
        column.field: column.text(column.value(results[0]))
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


def sort_results(results: Sequence[Result], by: str) -> list[Result]:
    """Results by one field, the best first; a leading "-" turns the order round; results without a value come last.

    Raises:
        InvalidSetting: no field has that name (any more), or it holds a mapping.
    """
    name = by.removeprefix("-")
    if (renamed := new_name(name)) is not None:
        raise InvalidSetting("sort", by, f"is {renamed} now")
    sortable = [field.name for field in result_fields() if "dict" not in str(field.hint)]
    if name not in sortable:
        raise InvalidSetting("sort", by, f"no such column; there are {', '.join(sortable)}")
    filled = [result for result in results if result.value_of(name) is not None]
    empty = [result for result in results if result.value_of(name) is None]

    def place(result: Result) -> tuple:
        # Text and numbers may meet in one column (a granularity of 64 or "4x64"): numbers come first.
        return isinstance(result.value_of(name), str), result.value_of(name)

    return sorted(filled, key=place, reverse=(name in MORE_IS_BETTER) != by.startswith("-")) + empty
