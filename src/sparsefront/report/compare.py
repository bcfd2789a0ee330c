"""Compare runs: sorted tables, a plot, a page. Behind `compare.py` at the root."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from sparsefront.artifacts.access import denied
from sparsefront.counted import counted
from sparsefront.errors import InvalidSetting
from sparsefront.packages import missing_package
from sparsefront.printable import printable
from sparsefront.report.axis import axis_named
from sparsefront.report.columns import sort_results
from sparsefront.report.comparable import ComparableResults, split_comparable
from sparsefront.report.compare_request import USAGE, Request, parse
from sparsefront.report.failed_runs import failed_runs
from sparsefront.report.page.comparison import write_comparison
from sparsefront.report.plots import drawn_beside
from sparsefront.report.rebuild import merge_stores, rebuild_store
from sparsefront.report.store import ANOTHER_FOLDER, RESULT_FILE, STORE_FILE, Reading, read_results
from sparsefront.report.terminal import print_group
from sparsefront.report.wandb_comparison import log_comparison, wandb_of
from sparsefront.report.wandb_source import read_wandb_results
from sparsefront.report.winners import verdicts
from sparsefront.standard_output import ending_with_its_reader

MOST_READERS = 4


@ending_with_its_reader()
def main(arguments: Sequence[str]) -> int:
    """Run the comparison; returns the exit status: 0, or 1 with one message on stderr."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    try:
        with _no_garbage_collection():
            request = parse(arguments)
            _rebuild(request) if request.rebuild else _compare(request)
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    except PermissionError as error:
        print(denied(error, otherwise=ANOTHER_FOLDER), file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (complaint := missing_package(error)) is None:
            raise
        print(complaint, file=sys.stderr)
        return 1
    return 0


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A program that ends soon: to look through all results for garbage, again and again, takes a third of its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _compare(request: Request) -> None:
    axis = axis_named(request.axis)
    logging = wandb_of(request)
    reading = _read(request)
    for problem in reading.problems:
        print(f"left out: {printable(problem)}", file=sys.stderr)
    if not reading.results:
        raise InvalidSetting("results", _source_text(request), "no results found; python run.py makes one")
    failed = failed_runs(reading.failures, reading.finished)
    for line in failed:
        print(printable(f"failed: {line['failed']}: {line['because']}"), file=sys.stderr)
    results = sort_results(reading.results, request.sort)
    groups = split_comparable(results, axis)

    @cache
    def verdicts_of(group: ComparableResults) -> list[str]:
        return verdicts(group.candidates, reading.outcomes_of) if len(group.candidates) > 1 else []

    for group in groups:
        print_group(group, verdicts_of(group), most=request.most_rows)
    for line in request.picked_before:
        print(printable(line))
    out = Path(request.out)
    try:
        with drawn_beside(groups, out / "compare.png"):
            write_comparison(
                results,
                out / "compare.html",
                title="; ".join([f"{counted(len(results), 'run')} compared", *request.picked_before]),
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


def _sweep(request: Request) -> str | None:
    """The name of the sweep whose folder alone is compared, which is the group of its runs in W&B; None of several folders."""
    alone = request.source == "disk" and len(request.paths) == 1 and request.paths[0].is_dir()
    return request.paths[0].resolve().name if alone else None


def _rebuild(request: Request) -> None:
    paths = request.paths or [Path("results")]
    if request.store is None:
        stores = {folder / STORE_FILE: rebuild_store(folder, processes=_readers()) for folder in paths}
    else:
        store = Path(request.store)
        try:
            if store.is_dir():  # so is the empty name
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
        kept = f", and {counted(len(rebuilt.kept), 'line')} kept that cannot be read" if rebuilt.kept else ""
        print(f"{store}: {counted(len(rebuilt.runs), 'run')}{old}{kept}")


def _readers() -> int:
    return min(os.cpu_count() or 1, MOST_READERS)


def _read(request: Request) -> Reading:
    if request.source == "wandb":
        return read_wandb_results(entity=request.entity, project=request.project)
    return read_results(request.paths or [Path("results")], processes=_readers())


def _source_text(request: Request) -> str:
    if request.source == "wandb":
        return f"{request.entity or 'your account'}/{request.project} on W&B"
    return " ".join(map(str, request.paths)) or "results"
