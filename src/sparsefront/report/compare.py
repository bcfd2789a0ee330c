"""Compare runs: sorted tables, a plot, a page. Behind `compare.py` at the root."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsefront.errors import InvalidSetting
from sparsefront.packages import missing_package
from sparsefront.report.axis import SPEEDUP, axis_named
from sparsefront.report.columns import sort_results
from sparsefront.report.comparable import split_comparable
from sparsefront.report.page.comparison import write_comparison
from sparsefront.report.plots import write_groups_png
from sparsefront.report.store import FRONT_FILE, Reading, read_results
from sparsefront.report.table import records_table, results_table, table_console
from sparsefront.report.wandb_source import read_wandb_results
from sparsefront.report.winners import CHOICES, candidate_table, verdicts

USAGE = """\
usage: python compare.py [results ...] [out=DIR] [sort=COLUMN] [axis=AXIS] [source=wandb project=NAME entity=NAME]

Prints the runs, a table for each set that may be compared (model, data, samples evaluated, recovery steps, device, batch, dtype,
modes searched), with what differs inside a set below it; where there is something to choose, a second one: mean ± standard
deviation over seeds, what the held-out part of train picks, and whether the reporting split agrees (paired bootstrap).
Writes compare.png and compare.html (accuracy against speedup, one series per pattern, the same sets apart).

  results      folders (searched for row.json; where there is none, for rows.csv), CSV files or row.json files, or the
               NAME.front.txt of a search; default: results
  out=DIR      where the two files go; default: results/compare
  sort=COLUMN  any field of a result: speedup (default), sparse (its accuracy), latency_sparse_ms, sparsity_achieved, pattern ...;
               the best comes first, sort=-COLUMN turns the order round
  axis=AXIS    speedup (default): over the dense baseline of the same process; or latency_ms: milliseconds, which differ
               from process to process
  source=wandb read the runs of a W&B project instead, from the result that each keeps in its summary
"""


@dataclass
class Request:
    """The command line, understood."""

    paths: list[Path] = field(default_factory=list)
    out: str = "results/compare"
    sort: str = "speedup"
    axis: str = SPEEDUP.name
    source: str = "disk"
    project: str | None = None
    entity: str | None = None


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; returns the exit status: 0, or 1 with one message on stderr."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    try:
        _compare(parse(arguments))
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (complaint := missing_package(error)) is None:
            raise
        print(complaint, file=sys.stderr)
        return 1
    return 0


def parse(arguments: Sequence[str]) -> Request:
    """key=value for the known keys, everything else a path; a path may hold "=" itself, as Hydra's sweep folders do.

    Raises:
        InvalidSetting: an unknown key or option, or an unknown source.
    """
    request = Request()
    keys = ("out", "sort", "axis", "source", "project", "entity")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in keys:
            setattr(request, key, value)
        elif argument.startswith("-") or (equals and not Path(argument).exists()):
            raise InvalidSetting(key, value, f"no such option; there are {', '.join(keys)}, and paths (see --help)")
        elif argument.endswith(FRONT_FILE) and Path(argument).is_file():
            request.paths += [Path(run) for run in Path(argument).read_text().splitlines()]
        else:
            request.paths.append(Path(argument))
    if request.source not in ("disk", "wandb"):
        raise InvalidSetting("source", request.source, "disk or wandb")
    axis_named(request.axis)
    return request


def _compare(request: Request) -> None:
    axis = axis_named(request.axis)
    reading = _read(request)
    for problem in reading.problems:
        print(f"left out: {problem}", file=sys.stderr)
    if not reading.results:
        raise InvalidSetting("results", _source_text(request), "no results found; python run.py makes one")
    results = sort_results(reading.results, request.sort)
    console = table_console()
    groups = split_comparable(results, axis)
    for group in groups:
        console.print(results_table(group.results, group.notes()))
        if chosen := candidate_table(group.candidates):
            console.print(records_table(chosen, CHOICES, verdicts(group.candidates, reading.outcomes_of)))
    out = Path(request.out)
    try:
        written = (
            write_groups_png(groups, out / "compare.png"),
            write_comparison(
                results,
                out / "compare.html",
                title=f"{len(results)} runs compared",
                axis=axis,
                outcomes_of=reading.outcomes_of,
                folder_of=reading.folder_of,
                groups=groups,
            ),
        )
    except OSError as error:
        raise InvalidSetting("out", request.out, f"cannot be written: {error}") from None
    for path in written:
        print(path)


def _read(request: Request) -> Reading:
    if request.source == "wandb":
        return read_wandb_results(entity=request.entity, project=request.project)
    return read_results(request.paths or [Path("results")])


def _source_text(request: Request) -> str:
    if request.source == "wandb":
        return f"{request.entity or 'your account'}/{request.project} on W&B"
    return " ".join(map(str, request.paths)) or "results"
