"""Compare runs: tables, a plot, a page, and a W&B run."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from sparsefront.results.comparable import AXES, ComparableResults, split_comparable
from sparsefront.results.compare_arguments import Request
from sparsefront.results.field_types import holds_entries
from sparsefront.results.loggers import (
    COMPARE_JOB,
    PANELS,
    WandbLogging,
    read_wandb_results,
    require_account,
    write_panels,
)
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.plots import draw_beside
from sparsefront.results.record import Identity, Result, missing_columns, result_fields
from sparsefront.results.run_folder import list_failures
from sparsefront.results.serving import read_all_serving, serving_lines
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

    def table(lines: Sequence[Mapping[str, Any]]) -> Any:
        columns = list(lines[0]) if lines else []
        return wandb.Table(columns=columns, data=[list(line.values()) for line in lines], allow_mixed_types=True)

    config = {"compared": [group.title for group in groups], "runs": len(results)}
    run = logging.start_run(name="compare", dir=str(page.parent), group=sweep, job_type=COMPARE_JOB, config=config)
    try:
        points = table([line for group in groups for line in point_lines(group)])
        flat = [result.flat() for result in results]
        columns = [name for name in flat[0] if any(line[name] is not None for line in flat)]
        title = f"{groups[0].axis.label} and {groups[0].metric.label}"
        run.log(
            {
                "points": points,
                "fronts": table([line for group in groups for line in front_lines(group)]),
                "runs": table([{name: line[name] for name in columns} for line in flat]),
                "accuracy": wandb.plot.scatter(points, x="x", y="test", title=title),
                "page": wandb.Html(str(page)),
            }
        )
        return str(run.url or run.dir)
    finally:
        run.finish()


def point_lines(group: ComparableResults) -> Iterator[dict[str, Any]]:
    """One line per candidate: displayed qualities, seeds as the number of runs."""
    front = set(group.front())
    for point in group.points:
        candidate, choice = point.candidate, point.result.choice
        low, high = point.x_interval or (None, None)
        parts = ("recovery", "schedule", "allocation", "importance", "kernel_mode")
        yield {
            **{"compared": group.title, "pattern": candidate.pattern},
            **{name: getattr(choice, name) for name in parts},
            **{"sparsity": point.sparsity, "seeds": len(candidate.results), "val": point.val, "test": point.quality},
            **{"spread": point.spread, "axis": group.axis.name, "x": point.x, "x_low": low, "x_high": high},
            **{"on_front": (point.x, point.quality) in front, "run_ids": " ".join(candidate.runs)},
        }


def front_lines(group: ComparableResults) -> Iterator[dict[str, Any]]:
    """The Pareto-optimal points, including the dense ones."""
    for x, quality in sorted(group.front()):
        yield {"compared": group.title, "axis": group.axis.name, "x": x, "test": quality}


# Published tables of points: fewer columns than a store, some with other names.

# Column -> the field it fills, if the field's own column is missing.
_OTHER_NAMES = {
    **{"sparsity": "sparsity_target", "test_sparse": "sparse", "kernel": "kernel_mode", "kernels": "latency_kernel"},
    **{"batch": "batch_size", "latency_ms": "latency_sparse_ms", "dense_latency_ms": "latency_dense_ms"},
    **{"latency_p20_ms": "latency_sparse_p20_ms", "latency_p80_ms": "latency_sparse_p80_ms"},
    **{"device": "gpu", "torch": "torch_version", "date": "time", "call": "time"},
}
# Option or parameter of an override -> the field it fills, if that has another name.
_FIELDS_OF_OVERRIDES = {
    **{"kernel": "kernel_mode", "sparsity": "sparsity_target", "dataset.task": "dataset_task"},
    **dict.fromkeys(("model.variant", "model.size", "model.name"), "model_variant"),
    "recovery.seed": "recovery_seed",
}
_PARTS = ("pattern", "importance", "allocation", "schedule", "recovery", "recipe", "dataset")
_MEASURED = ("masked", "sparse", "latency_sparse_ms")  # a table of points has one of these
_NOT_FILLED = ("record_sha256", "outcomes_file", "samples_file")  # refer to records and files that are not available
_READ_APART = ("choice", "level", "distribution", "overrides", "unsupported")
_NOT_RECORDED = "not recorded"
_VERSION = str(Identity.schema_version)  # the default of the field


def _read_published(file: Path, reading: Reading, *, alone: bool) -> bool:
    """Add the points of a CSV file that is not a store; False if it should be read as a store.

    Args:
        alone: whether nothing else is compared, so that another table is an error instead of a problem.
    Raises:
        InvalidSetting: it is a table of something else.
    """
    try:
        header, parsed = parse_lines(whole_lines(read_table_text(file)))
        lines = list(parsed)
    except (OSError, ValueError):
        return False
    if len(header) < 2 or not missing_columns(header):
        return False
    fields = {item.name for item in result_fields()}.difference(_NOT_FILLED, _find_shortened(lines))
    field_of = {name: name if name in fields else _OTHER_NAMES.get(name) for name in header}
    filled, single = set(field_of.values()), {"choice", "level"} <= set(header)
    lacking = [name for name in ("pattern", "sparsity_target") if name not in filled and not single]
    lacking += [] if filled & set(_MEASURED) else [" or ".join(_MEASURED)]
    if lacking:
        page = file.parent / "README.md"
        where = f"; {page} says what it holds" if page.is_file() else ""
        other = (
            f"holds other numbers than accuracy and latency of networks: it has no column {', '.join(lacking)}{where}"
        )
        if alone:
            raise InvalidSetting("results", file, other)
        reading.problems.append(f"{file}: {other}")
        return True
    ignored = [name for name in header if field_of[name] is None and name not in _READ_APART]
    if ignored:
        print(printable(f"{file}: columns that are ignored: {', '.join(ignored)}"), file=sys.stderr)
    refused = sum(bool(line.get("unsupported")) for line in lines)
    if refused:
        reading.problems.append(f"{file}: {counted(refused, 'point')} refused before a run (column unsupported)")
    for number, line in enumerate(lines, start=1):
        if not line.get("unsupported"):
            try:
                result = Result.from_flat(_cells(line, field_of, number=number, table=file.name.partition(".")[0]))
                reading.results += [] if result in reading.results else [result]
            except ValueError as error:
                reading.problems.append(f"{file}, point {number}: {error}")
    return True


def _find_shortened(lines: Sequence[Mapping[str, str]]) -> set[str]:
    """Fields with mappings or lists that the table has as words instead of JSON."""
    nested = [item.name for item in result_fields() if holds_entries(item.hint)]
    return {name for name in nested if any(line.get(name, "")[:1] not in ("", "{", "[") for line in lines)}


def _cells(line: Mapping[str, str], field_of: Mapping[str, str | None], *, number: int, table: str) -> dict[str, str]:
    """Convert a line of a published table to a line of a store, as far as possible.

    Args:
        number: of the line, to name runs without a name.
        table: the file's name, used as the model if neither column nor override names one.
    """
    cells = {name: line[column] for column, name in field_of.items() if name is not None and line.get(column)}
    parameters: dict[str, dict[str, Any]] = {}
    for override in _overrides(line.get("overrides", "")):
        name, _, value = override.partition("=")
        part, _, key = name.partition(".")
        if value and (not key or key in ("variant", "size", "name", "task", "seed")):
            cells.setdefault(_FIELDS_OF_OVERRIDES.get(name, name), value)
        elif value and part in _PARTS:
            parameters.setdefault(part, {})[key] = _value(value)
    choice = line.get("choice")
    if choice:
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
    defaults |= dict.fromkeys(("config_hash", "python", "torch_version", "dataset"), _NOT_RECORDED)
    fields = {item.name for item in result_fields()}
    return defaults | {"schema_version": _VERSION} | {name: cells[name] for name in cells if name in fields}


def _overrides(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


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
    axis = AXES[request.axis]
    logging = wandb_of(request)
    if request.panels == "wandb":
        require_account("panels", request.project, PANELS)
    reading = _read(request)
    for problem in reading.problems:
        print(f"left out: {printable(problem)}", file=sys.stderr)
    if not reading.results:
        raise InvalidSetting("results", _source_text(request), f"no results found; {program_command('run')} makes one")
    failed = list_failures(reading.failures, reading.finished)
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

    served = read_all_serving(results, reading.folder_of)
    for group in groups:
        print_group(group, verdicts_of(group), most=request.most_rows, served=serving_lines(group.results, served))
    for line in [*request.picked_before, *splits_apart(results)]:
        print(printable(line))
    out = Path(request.out)
    try:
        with draw_beside(groups, out / "compare.png"):
            write_comparison(
                results,
                out / "compare.html",
                title=request.title or "; ".join([_title(groups, len(results)), *request.picked_before]),
                axis=axis,
                verdicts_of=verdicts_of,
                folder_of=reading.folder_of,
                served=served,
                failed=failed,
                groups=groups,
            )
    except OSError as error:
        raise InvalidSetting("out", request.out, f"cannot be written: {error}") from None
    for name in ("compare.png", "compare.html"):
        print(out / name)
    if logging is not None:
        print(log_comparison(groups, results, out / "compare.html", logging=logging, sweep=_sweep(request)))
    if request.panels == "wandb":
        print(write_panels(results, entity=request.entity, project=request.project))


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
    paths, processes = request.paths or [Path("results")], min(os.cpu_count() or 1, MOST_READERS)
    if request.store is None:
        stores = {folder / STORE_FILE: rebuild_store(folder, processes=processes) for folder in paths}
    else:
        store = Path(request.store)
        try:
            if store.is_dir():  # also for an empty name
                raise InvalidSetting("store", request.store, "names no file")
            stores = {store: merge_stores(paths, store, processes=processes)}
        except OSError as error:
            raise InvalidSetting("store", request.store, f"cannot be written: {error}") from None
    for store, rebuilt in stores.items():
        for problem in rebuilt.problems:
            print(f"left out: {printable(problem)}", file=sys.stderr)
        for problem in rebuilt.unreadable:
            print(f"kept as it is: {printable(problem)}", file=sys.stderr)
        why = f"kept since their {RESULT_FILE} is missing or cannot be read"
        old = f", {len(rebuilt.old)} of them old lines, {why}" if rebuilt.old else ""
        unreadable = (
            f", and {counted(len(rebuilt.unreadable), 'line')} kept that cannot be read" if rebuilt.unreadable else ""
        )
        print(f"{store}: {counted(len(rebuilt.runs), 'run')}{old}{unreadable}")


def _read(request: Request) -> Reading:
    if request.source == "wandb":
        return read_wandb_results(entity=request.entity, project=request.project)
    paths = request.paths or [Path("results")]
    published = Reading()
    stores = [
        path for path in paths if path.suffix != ".csv" or not _read_published(path, published, alone=len(paths) == 1)
    ]
    reading = read_results(stores, processes=min(os.cpu_count() or 1, MOST_READERS))
    reading.problems += published.problems
    reading.results += [result for result in published.results if result not in reading.results]
    return reading


def _source_text(request: Request) -> str:
    if request.source == "wandb":
        return f"{request.entity or 'your account'}/{request.project} on W&B"
    return " ".join(map(str, request.paths)) or "results"
