"""Compare runs: tables, a plot, a page, and a W&B run."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_table_text
from sparsefront.errors import InvalidSetting, printable
from sparsefront.options import program_command
from sparsefront.processes import gc_disabled
from sparsefront.progress import counted
from sparsefront.results.candidates import splits_apart
from sparsefront.results.columns import sort_results
from sparsefront.results.comparable import ComparableResults, Point, axis_named, split_comparable
from sparsefront.results.compare_arguments import Request
from sparsefront.results.field_types import holds_entries
from sparsefront.results.loggers import COMPARE_JOB, WandbLogging, read_wandb_results
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.plots import drawn_beside
from sparsefront.results.record import Identity, Result, missing_columns, result_fields
from sparsefront.results.run_folder import failed_runs
from sparsefront.results.statistics import verdicts
from sparsefront.results.store import (
    RESULT_FILE,
    STORE_FILE,
    Reading,
    merge_stores,
    parse_lines,
    read_results,
    rebuild_store,
    whole_lines,
)
from sparsefront.results.study_blocks import split_off_invalid
from sparsefront.results.tables import print_group

# A comparison as a W&B run: its points, fronts, all of its results, and the page.

POINTS = (
    *("compared", "pattern", "recovery", "schedule", "allocation", "importance", "kernel_mode", "sparsity", "seeds"),
    *("val", "test", "spread", "axis", "x", "x_low", "x_high", "on_front", "run_ids"),
)
FRONTS = ("compared", "axis", "x", "test")


def wandb_of(request: Request) -> WandbLogging | None:
    """The W&B settings of the comparison; None if it is not logged there.

    Raises:
        InvalidSetting: wandb is not installed.
    """
    if request.log != "wandb":
        return None
    logging = WandbLogging(project=request.project or WandbLogging.project, entity=request.entity)
    logging.check()
    return logging


def log_comparison(
    groups: Sequence[ComparableResults],
    results: Sequence[Result],
    page: Path,
    *,
    logging: WandbLogging,
    sweep: str | None,
) -> str:
    """Log tables `points`, `fronts` and `runs`, a plot of the points and the page, as a W&B run with job type "compare".

    Args:
        results: all compared results.
        page: the comparison's file; W&B writes next to it.
        sweep: the group of the W&B run, as of the sweep's runs.
    Returns:
        its address, or the folder of an offline run.
    """
    import wandb

    config = {"compared": [group.title for group in groups], "runs": len(results)}
    run = logging.start_run(name="compare", dir=str(page.parent), group=sweep, job_type=COMPARE_JOB, config=config)
    try:
        points = wandb.Table(
            columns=list(POINTS), data=[line for group in groups for line in point_lines(group)], allow_mixed_types=True
        )
        flat = [result.flat() for result in results]
        columns = [name for name in flat[0] if any(line[name] is not None for line in flat)]
        run.log(
            {
                "points": points,
                "fronts": wandb.Table(
                    columns=list(FRONTS), data=[line for group in groups for line in front_lines(group)]
                ),
                "runs": wandb.Table(
                    columns=columns, data=[[line[name] for name in columns] for line in flat], allow_mixed_types=True
                ),
                "accuracy": wandb.plot.scatter(
                    points, x="x", y="test", title=f"{groups[0].axis.label} and {groups[0].quality_label}"
                ),
                "page": wandb.Html(str(page)),
            }
        )
        return str(run.url or run.dir)
    finally:
        run.finish()


def point_lines(group: ComparableResults) -> Iterator[list[Any]]:
    """One line per candidate, in the order of `POINTS`: displayed qualities, seeds as the number of runs."""
    front = set(group.front())
    for point in group.points():
        yield [
            group.title,
            *_choice(point),
            point.val,
            point.quality,
            point.spread,
            group.axis.name,
            *_place(point, front),
        ]


def front_lines(group: ComparableResults) -> Iterator[list[Any]]:
    """The Pareto-optimal points, including the dense ones, in the order of `FRONTS`."""
    for x, quality in sorted(group.front()):
        yield [group.title, group.axis.name, x, quality]


def _choice(point: Point) -> list[Any]:
    choice = point.result.choice
    parts = [choice.recovery, choice.schedule, choice.allocation, choice.importance, choice.kernel_mode]
    return [point.candidate.pattern, *parts, point.sparsity, len(point.candidate.results)]


def _place(point: Point, front: set[tuple[float, float]]) -> list[Any]:
    low, high = point.x_interval or (None, None)
    return [point.x, low, high, (point.x, point.quality) in front, " ".join(point.candidate.runs)]


# Published tables of points: fewer columns than a store, some with other names.

# Column -> the field it fills, if the field's own column is missing.
_OTHER_NAMES = {
    "sparsity": "sparsity_target",
    "test_sparse": "sparse",
    "kernel": "kernel_mode",
    "kernels": "latency_kernel",
    "batch": "batch_size",
    "latency_ms": "latency_sparse_ms",
    "latency_p20_ms": "latency_sparse_p20_ms",
    "latency_p80_ms": "latency_sparse_p80_ms",
    "dense_latency_ms": "latency_dense_ms",
    "device": "gpu",
    "torch": "torch_version",
    "date": "time",
    "call": "time",
}
_MEASURED = ("masked", "sparse", "latency_sparse_ms")  # a table of points has one of these
_NOT_FILLED = ("record_sha256", "outcomes_file", "samples_file")  # refer to records and files that are not available
_READ_APART = ("choice", "level", "distribution", "overrides", "unsupported")
_NOT_RECORDED = "not recorded"
# Columns that identify other tables -> their content, and the program that draws them.
_OTHER_TABLES: tuple[tuple[set[str], str, str | None], ...] = (
    ({"shape", "latency_us", "baseline_us"}, "latencies of single products", "operators.draw"),
    ({"kernel", "block", "latency_us"}, "latencies of single products", "low_precision.operators"),
    ({"dense_graph_ms", "sparse_graph_ms"}, "times of a training step", "sparse_training.study"),
    ({"dense_y_us", "dense_dx_us"}, "times of the products of a training step", "sparse_training.study"),
    ({"copy_us", "product_us"}, "what tiles would cost in fp8", "low_precision.tiles"),
    ({"shapes", "crossover", "verdict"}, "the sparsity from which kernels of single products win", "operators.draw"),
    ({"next_kernel", "crosses_at_m"}, "the fastest kernels of single products by M", "operators.draw"),
    ({"in_channels", "filter", "latency_us"}, "latencies of single convolutions", "convolutions.summary"),
    ({"residual", "keep_sums", "median_us"}, "latencies of single LayerNorms", "norm.measure"),
    ({"line", "what", "latency_ms"}, "latencies of one pattern, run in several ways", "end_to_end.summary"),
    ({"side", "us_per_forward"}, "times of the kernels of a forward pass", "end_to_end.summary"),
    ({"thread", "way", "verdict"}, "latencies of single layers", "complaints.page"),
    ({"level", "seeds", "difference"}, "differences between a search and single patterns", "search.summary"),
    ({"call", "workers", "wall_s"}, "wall times of sweeps", None),
    ({"devices", "samples_per_s"}, "training throughput", "ddp.throughput"),
    ({"devices", "wall_ms", "exchange_ms"}, "times of a training step", "ddp.throughput"),
    ({"rank", "masks_sha256"}, "digests of masks and weights on every rank", "ddp.throughput"),
    ({"setting", "retained"}, "what masks retain of the magnitude, without training", "pattern_retention.draw"),
    ({"edit", "tried", "unseen"}, "edits of results that were tried", "faults.edits"),
    ({"fault", "tried", "lost"}, "faults that were tried", "faults.processes"),
    ({"fault", "before", "now"}, "seeded faults that tests catch", "faults.seeded"),
    ({"part", "probe", "bigrams"}, "labels told from the nearest training text", "splits.leak_probe"),
    ({"point", "plain", "apart"}, "perplexities beside those of plain PyTorch", "language_models.study"),
    ({"network", "inputs", "swap_s"}, "latencies of networks through the library", "end_to_end.library"),
    ({"graphed_ms", "tokens_per_s"}, "latencies of steps of generated text", "language_models.decode"),
    ({"file", "command", "outcome"}, "what commands say of damaged files", "faults.corrupt_files"),
)


@dataclass(frozen=True)
class _Published:
    """A published table of points as results, with notes about ignored parts; or the reason why it holds no results."""

    results: list[Result]
    told: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    another: str | None = None


def _published(file: Path) -> _Published | None:
    """The points of a CSV file that is not a store; None if it should be read as a store."""
    try:
        header, cells = parse_lines(whole_lines(read_table_text(file)))
        if not missing_columns(header):
            return None
        lines = list(cells)
    except (OSError, ValueError):
        return None
    for columns, what, module in _OTHER_TABLES:
        if columns <= set(header):
            drawn = f"; python -m experiments.{module} makes or draws it" if module else ""
            return _Published([], another=f"holds {what}, not accuracy and latency of networks{drawn}")
    fields = {item.name for item in result_fields()}.difference(_NOT_FILLED, _shortened_mappings(lines))
    column_fields = {name: name if name in fields else _OTHER_NAMES.get(name) for name in header}
    filled = set(column_fields.values())
    if not filled & set(_MEASURED):
        return None
    single = {"choice", "level"} <= set(header)
    if missing := [name for name in ("pattern", "sparsity_target") if name not in filled and not single]:
        lacks = f"has no column {', '.join(missing)}"
        needs = f"a table of points needs pattern, sparsity_target and one of {', '.join(_MEASURED)}"
        return _Published([], another=f"{lacks}; {needs}")
    ignored = [name for name in header if column_fields[name] is None and name not in _READ_APART]
    notes = [f"{file}: columns that are ignored: {', '.join(ignored)}"] if ignored else []
    refused = sum(bool(line.get("unsupported")) for line in lines)
    problems = [f"{file}: {counted(refused, 'point')} refused before a run (column unsupported)"] if refused else []
    results = []
    for number, line in enumerate(lines, start=1):
        if line.get("unsupported"):
            continue
        try:
            results.append(
                Result.from_flat(_cells(line, column_fields, number=number, table=file.name.partition(".")[0]))
            )
        except ValueError as error:
            problems.append(f"{file}, point {number}: {error}")
    return _Published(results, notes, problems)


def _shortened_mappings(lines: Sequence[Mapping[str, str]]) -> set[str]:
    """Fields with mappings or lists that the table has as words instead of JSON."""
    nested = [item.name for item in result_fields() if holds_entries(item.hint)]
    return {name for name in nested if any(line.get(name, "")[:1] not in ("", "{", "[") for line in lines)}


def _cells(line: Mapping[str, str], named: Mapping[str, str | None], *, number: int, table: str) -> dict[str, str]:
    """Convert a line of a published table to a line of a store, as far as possible.

    Args:
        named: column -> field.
        number: of the line, to name runs without a name.
        table: the file's name, used as the model if neither column nor override names one.
    """
    cells = {name: line[column] for column, name in named.items() if name is not None and line.get(column)}
    parameters: dict[str, dict[str, Any]] = {}
    for part, key, value in _overrides(line.get("overrides", "")):
        if key is None or key in ("variant", "size", "name", "task", "seed"):
            cells.setdefault(_field_of(part, key), value)
        elif part in ("pattern", "importance", "allocation", "schedule", "recovery", "recipe", "dataset"):
            parameters.setdefault(part, {})[key] = _value(value)
    if choice := line.get("choice"):
        level = line.get("level", "")
        # "tile_wise:128" has a granularity; "n:m" and "2:4" are labels
        name, granularity = choice.split(":") if re.fullmatch(r"[a-z_]{2,}:\w+", choice) else (choice, "")
        if name == "search":  # with a sparsity ceiling from the overrides, or none
            cells |= {"pattern": "mixed", "allocation": "latency_search"}
            cells.setdefault("sparsity_target", "1")
            parameters.setdefault("allocation", {})["speedup"] = _value(level)
        else:
            cells |= {"pattern": name, "granularity": granularity, "sparsity_target": level}
    if line.get("distribution"):
        parameters.setdefault("pattern", {})["distribution"] = line["distribution"]
    cells |= {f"{part}_parameters": json.dumps(held) for part, held in parameters.items()}
    if cells.keys() & {"latency_sparse_ms", "speedup"}:
        cells.setdefault("latency_device", "cuda" if cells.get("gpu") else "cpu")
    defaults = {"run_id": f"{table}-{number}", "time": "", "seed": "0", "model": table, "metric_name": "quality"}
    others = dict.fromkeys(("config_hash", "python", "torch_version", "dataset"), _NOT_RECORDED)
    fields = {item.name for item in result_fields()}
    return defaults | others | {"schema_version": _VERSION} | {name: cells[name] for name in cells if name in fields}


_VERSION = str(Identity.schema_version)  # the default of the field


def _overrides(text: str) -> Iterator[tuple[str, str | None, str]]:
    """(part, parameter or None, value) of the overrides given to `run.py`."""
    try:
        words = shlex.split(text)
    except ValueError:
        return
    for override in words:
        name, equals, value = override.partition("=")
        part, _, key = name.partition(".")
        if equals and value:
            yield part, key or None, value


def _field_of(part: str, key: str | None) -> str:
    """The field of an option, or of a parameter with its own field: `model.size` is the model's variant."""
    names = {"kernel": "kernel_mode", "sparsity": "sparsity_target", "dataset.task": "dataset_task"}
    names |= dict.fromkeys(("model.variant", "model.size", "model.name"), "model_variant") | {
        "recovery.seed": "recovery_seed"
    }
    name = part if key is None else f"{part}.{key}"
    return names.get(name, name)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


MOST_READERS = 4
MOST_SUBJECTS = 3  # groups named in the page's title


def answer(request: Request) -> None:
    """Print the comparison and write its files.

    Raises:
        InvalidSetting: there is nothing to compare, or a file cannot be written.
        PermissionError: a folder may not be read.
    """
    with gc_disabled():  # this short program would spend a third of its time on collections
        _rebuild(request) if request.rebuild else _compare(request)


def _compare(request: Request) -> None:
    axis = axis_named(request.axis)
    logging = wandb_of(request)
    reading = _read(request)
    for problem in reading.problems:
        print(f"left out: {printable(problem)}", file=sys.stderr)
    if not reading.results:
        raise InvalidSetting("results", _source_text(request), f"no results found; {program_command('run')} makes one")
    failed = failed_runs(reading.failures, reading.finished)
    for line in failed:
        print(printable(f"failed: {line['failed']}: {line['because']}"), file=sys.stderr)
    counting, invalid = split_off_invalid(reading.results)
    for line in invalid:
        print(printable(line), file=sys.stderr)
    if not counting:
        raise InvalidSetting("results", _source_text(request), "no result may be ranked: see the lines above")
    results = sort_results(counting, request.sort)
    groups = split_comparable(results, axis)

    @cache
    def verdicts_of(group: ComparableResults) -> list[str]:
        return verdicts(group.candidates, reading.outcomes_of) if len(group.candidates) > 1 else []

    for group in groups:
        print_group(group, verdicts_of(group), most=request.most_rows)
    for line in [*request.picked_before, *splits_apart(results)]:
        print(printable(line))
    out = Path(request.out)
    try:
        with drawn_beside(groups, out / "compare.png"):
            write_comparison(
                results,
                out / "compare.html",
                title=request.title or "; ".join([_title(groups, len(results)), *request.picked_before]),
                axis=axis,
                verdicts_of=verdicts_of,
                folder_of=reading.folder_of,
                failed=failed,
                groups=groups,
            )
    except OSError as error:
        raise InvalidSetting("out", request.out, f"cannot be written: {error}") from None
    for name in ("compare.png", "compare.html"):
        print(out / name)
    if logging is not None:
        print(log_comparison(groups, results, out / "compare.html", logging=logging, sweep=_sweep(request)))


def _title(groups: Sequence[ComparableResults], runs: int) -> str:
    """Title of the compared groups, by their names."""
    subjects = dict.fromkeys(group.title.partition(" · ")[0] for group in groups)
    names = ", ".join(list(subjects)[:MOST_SUBJECTS]) + (" ..." if len(subjects) > MOST_SUBJECTS else "")
    return f"{names}: {counted(runs, 'run')} compared"


def _sweep(request: Request) -> str | None:
    """The name of the compared sweep, which is the W&B group of its runs; None for several folders."""
    alone = request.source == "disk" and len(request.paths) == 1 and request.paths[0].is_dir()
    return request.paths[0].resolve().name if alone else None


def _rebuild(request: Request) -> None:
    paths = request.paths or [Path("results")]
    if request.store is None:
        stores = {folder / STORE_FILE: rebuild_store(folder, processes=_readers()) for folder in paths}
    else:
        store = Path(request.store)
        try:
            if store.is_dir():  # also for an empty name
                raise InvalidSetting("store", request.store, "names no file")
            stores = {store: merge_stores(paths, store, processes=_readers())}
        except OSError as error:
            raise InvalidSetting("store", request.store, f"cannot be written: {error}") from None
    for store, rebuilt in stores.items():
        for problem in rebuilt.problems:
            print(f"left out: {printable(problem)}", file=sys.stderr)
        for problem in rebuilt.kept:
            print(f"kept as it is: {printable(problem)}", file=sys.stderr)
        why = f"kept since their {RESULT_FILE} is missing or cannot be read"
        old = f", {len(rebuilt.old)} of them old lines, {why}" if rebuilt.old else ""
        unreadable = f", and {counted(len(rebuilt.kept), 'line')} kept that cannot be read" if rebuilt.kept else ""
        print(f"{store}: {counted(len(rebuilt.runs), 'run')}{old}{unreadable}")


def _readers() -> int:
    return min(os.cpu_count() or 1, MOST_READERS)


def _read(request: Request) -> Reading:
    if request.source == "wandb":
        return read_wandb_results(entity=request.entity, project=request.project)
    paths = request.paths or [Path("results")]
    published = {path: table for path in paths if path.suffix == ".csv" and (table := _published(path)) is not None}
    reading = read_results([path for path in paths if path not in published], processes=_readers())
    for path, table in published.items():
        if table.another is not None:
            if len(paths) == 1:
                raise InvalidSetting("results", path, table.another)
            reading.problems.append(f"{path}: {table.another}")
        for line in table.told:
            print(printable(line), file=sys.stderr)
        reading.problems += table.problems
        reading.results += [result for result in table.results if result not in reading.results]
    return reading


def _source_text(request: Request) -> str:
    if request.source == "wandb":
        return f"{request.entity or 'your account'}/{request.project} on W&B"
    return " ".join(map(str, request.paths)) or "results"
