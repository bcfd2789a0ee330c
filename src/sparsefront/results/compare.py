"""Compare runs: the command line of `compare.py`, tables, a plot, a page, and the same in W&B."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import Unreadable, read_text_bounded
from sparsefront.artifacts.durable import denied
from sparsefront.errors import InvalidSetting, printable
from sparsefront.options import missing_package
from sparsefront.progress import counted, ending_with_its_reader
from sparsefront.results.columns import sort_results
from sparsefront.results.comparable import SPEEDUP, ComparableResults, Point, axis_named, split_comparable
from sparsefront.results.loggers import COMPARE_JOB, WandbLogging, read_wandb_results
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.plots import drawn_beside
from sparsefront.results.record import Result
from sparsefront.results.run_folder import failed_runs
from sparsefront.results.statistics import verdicts
from sparsefront.results.store import (
    ANOTHER_FOLDER,
    FRONT_FILE,
    RESULT_FILE,
    STORE_FILE,
    Reading,
    merge_stores,
    read_results,
    rebuild_store,
)
from sparsefront.results.tables import MOST_ROWS, print_group

# The command line of `compare.py`.

USAGE = """\
usage: python compare.py [results ...] [out=DIR] [sort=COLUMN] [axis=AXIS] [rows=N] [source=wandb project=NAME entity=NAME]
                         [log=wandb project=NAME entity=NAME]

Prints the runs, a table for each set that may be compared (model, data, samples evaluated, recovery steps, device, batch, dtype,
modes searched), with what differs inside a set below it; where there is something to choose, a second one: mean ± standard
deviation over seeds, what the held-out part of train picks, and whether the reporting split agrees (paired bootstrap). Below
them a sentence per budget: the fastest that loses at most so many points. A terminal that is too narrow for the first table
gets one of what decides. Writes compare.png and compare.html: fronts, a latency budget that names the winner and its command,
filters that stay in the page's address, a ranking, missing cells, the runs as CSV and JSON; the same sets apart.

  results      folders (searched for row.json, in linked folders too; where there is none, for rows.csv), CSV files or row.json
               files, or the NAME.front.txt of a search; default: results
  out=DIR      where the two files go; default: results/compare
  sort=COLUMN  any field of a result: speedup (default), sparse (its accuracy), latency_sparse_ms, sparsity_achieved, pattern ...;
               the best comes first, sort=-COLUMN turns the order round
  axis=AXIS    speedup (default): over the dense baseline of the same process; or latency_ms: milliseconds, which differ
               from process to process
  rows=N       lines of each table in the terminal (default 40), or all; the page holds every run
  source=wandb read the runs of a W&B project instead, from the result that each keeps in its summary
  log=wandb    put the comparison into W&B too, as a run of its own: tables of points, fronts and runs, and the page; in the
               group of a sweep's runs where its folder alone is compared; project=sparsefront unless named; offline without
               an account

python compare.py --rebuild [results ...] [store=FILE.csv] compares nothing: it writes rows.csv of each folder anew from the
row.json of its runs, or, with store=FILE.csv, one CSV file of the results of all these folders and files. Lines that cannot be
read stay.
"""


@dataclass
class Request:
    """The arguments of the command line."""

    paths: list[Path] = field(default_factory=list)
    picked_before: list[str] = field(default_factory=list)  # what lists of runs say of those that they leave out
    out: str = "results/compare"
    sort: str = "speedup"
    axis: str = SPEEDUP.name
    rows: str = str(MOST_ROWS)
    rebuild: bool = False
    store: str | None = None
    source: str = "disk"
    log: str = "none"
    project: str | None = None
    entity: str | None = None

    @property
    def most_rows(self) -> int | None:
        """Lines of a table in the terminal; None: all."""
        return None if self.rows == "all" else int(self.rows)


def parse(arguments: Sequence[str]) -> Request:
    """key=value for the known keys, everything else a path; a path may hold "=" itself, as Hydra's sweep folders do.

    Raises:
        InvalidSetting: an unknown key or option, an unknown source, or no number of lines.
    """
    request = Request()
    keys = ("out", "sort", "axis", "rows", "store", "source", "log", "project", "entity")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in keys:
            setattr(request, key, value)
        elif argument == "--rebuild":
            request.rebuild = True
        elif argument.startswith("-") or (equals and not Path(argument).exists()):
            raise InvalidSetting(key, value, f"no such option; there are {', '.join(keys)}, and paths (see --help)")
        elif argument.endswith(FRONT_FILE) and Path(argument).is_file():
            for line in _lines(Path(argument)):
                request.picked_before += [line.removeprefix("#").strip()] if line.startswith("#") else []
                request.paths += [] if line.startswith("#") else [Path(line)]
        else:
            request.paths.append(Path(argument))
    if request.source not in ("disk", "wandb"):
        raise InvalidSetting("source", request.source, "disk or wandb")
    if request.log not in ("none", "wandb"):
        raise InvalidSetting("log", request.log, "none or wandb")
    if request.store is not None and not request.rebuild:
        raise InvalidSetting("store", request.store, "is a file that --rebuild writes")
    axis_named(request.axis)
    if request.rows != "all" and not (request.rows.isdecimal() and int(request.rows)):
        raise InvalidSetting("rows", request.rows, "a number of lines above 0, or all")
    return request


def _lines(file: Path) -> list[str]:
    """Of a search's list of runs."""
    try:
        text = read_text_bounded(file)
        if "\0" in text:
            raise Unreadable("holds a null character, which no path has")
    except Unreadable as error:
        raise InvalidSetting("results", file, str(error)) from None
    return text.splitlines()


# A comparison as a run of W&B: its points, its fronts, all of its results, and the page.

POINTS = (
    *("compared", "pattern", "recovery", "schedule", "allocation", "importance", "kernel_mode", "sparsity", "seeds"),
    *("val", "test", "spread", "axis", "x", "x_low", "x_high", "on_front", "run_ids"),
)
FRONTS = ("compared", "axis", "x", "test")


def wandb_of(request: Request) -> WandbLogging | None:
    """Where the comparison goes; None where it does not.

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
    """Log tables `points`, `fronts` and `runs`, a plot of the points and the page, as a run of job type "compare".

    Args:
        results: all that are compared.
        page: the comparison's file; W&B writes beside it.
        sweep: whose runs it is put beside: the run's group.
    Returns:
        where it is: an address, or the folder of a run that is kept offline.
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
                    points, x="x", y="test", title=f"{groups[0].axis.label} and accuracy, %"
                ),
                "page": wandb.Html(str(page)),
            }
        )
        return str(run.url or run.dir)
    finally:
        run.finish()


def point_lines(group: ComparableResults) -> Iterator[list[Any]]:
    """One line for each candidate, by `POINTS`: qualities in per cent, seeds as the number of runs."""
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
    """The points that nothing beats, the dense ones among them, by `FRONTS`."""
    for x, quality in sorted(group.front()):
        yield [group.title, group.axis.name, x, quality]


def _choice(point: Point) -> list[Any]:
    choice = point.result.choice
    parts = [choice.recovery, choice.schedule, choice.allocation, choice.importance, choice.kernel_mode]
    return [point.candidate.pattern, *parts, point.sparsity, len(point.candidate.results)]


def _place(point: Point, front: set[tuple[float, float]]) -> list[Any]:
    low, high = point.x_interval or (None, None)
    return [point.x, low, high, (point.x, point.quality) in front, " ".join(point.candidate.runs)]


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
