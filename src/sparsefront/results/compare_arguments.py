"""The arguments of `compare.py`, and of `sparsefront compare`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsefront.artifacts.bounded_files import Unreadable, read_text_bounded
from sparsefront.errors import InvalidSetting
from sparsefront.results.run_folder import FRONT_FILE

# COMMAND: as the user typed it.
USAGE = """\
usage: COMMAND [results ...] [out=DIR] [title=TEXT] [sort=COLUMN] [axis=AXIS] [rows=N]
       [source=wandb project=NAME entity=NAME] [log=wandb project=NAME entity=NAME] [panels=wandb]

Prints the runs, a table for each set that may be compared (model, data, samples evaluated, recovery steps, device, batch, dtype,
modes searched), with what differs inside a set below it; where there is something to choose, a second one: mean ± standard
deviation over seeds, what the held-out part of train picks, and whether the reporting split agrees (paired t). Below them a
line per budget: the fastest that surely loses at most so many points. A terminal that is too narrow for the first table gets
one of what decides. Writes compare.png and compare.html: fronts, a latency budget that names the winner and its command,
filters that stay in the page's address, a ranking, missing cells, the runs as CSV and JSON; the same sets apart.

  results      folders (searched for row.json and RUN_ID.record.zip, in linked folders too; where there is none, for rows.csv),
               CSV files, row.json files or packed records, or the NAME.front.txt of a search; default: results. A CSV file of
               points needs pattern, sparsity_target and masked, sparse or latency_sparse_ms, named as in rows.csv; other columns
               are ignored, and named
  out=DIR      where the two files go; default: results/compare
  title=TEXT   of the page; default: models and data of the runs
  sort=COLUMN  any field of a result: speedup (default), sparse (its accuracy), latency_sparse_ms, sparsity_achieved, pattern ...;
               the best comes first, sort=-COLUMN turns the order round
  axis=AXIS    speedup (default): over the dense baseline of the same process; speedup_dataset: the same over the data set's own
               batches (measure.lengths=dataset); or latency_ms: milliseconds, which differ from process to process
  rows=N       lines of each table in the terminal (default 40), or all; the page holds every run
  source=wandb read the runs of a W&B project instead, from the result that each keeps in its summary
  log=wandb    put the comparison into W&B too, as a run of its own: tables of points, fronts and runs, and the page; in the
               group of a sweep's runs where its folder alone is compared; project=sparsefront unless named; offline without
               an account

COMMAND --rebuild [results ...] [store=FILE.csv] compares nothing: it writes rows.csv of each folder anew from the
row.json of its runs, or, with store=FILE.csv, one CSV file of the results of all these folders and files. Lines that cannot be
read stay.
"""


MOST_ROWS = 40
AXIS_NAMES = ("speedup", "latency_ms", "speedup_dataset")
"""The names in `results.comparable.AXES`."""


@dataclass
class Request:
    """The parsed command line."""

    paths: list[Path] = field(default_factory=list)
    picked_before: list[str] = field(default_factory=list)  # notes of search lists about the runs they leave out
    out: str = "results/compare"
    title: str | None = None
    sort: str = "speedup"
    axis: str = AXIS_NAMES[0]
    rows: str = str(MOST_ROWS)
    rebuild: bool = False
    store: str | None = None
    source: str = "disk"
    log: str = "none"
    panels: str = "none"
    project: str | None = None
    entity: str | None = None

    @property
    def most_rows(self) -> int | None:
        """Maximum number of table lines in the terminal; None = all."""
        return None if self.rows == "all" else int(self.rows)


def parse(arguments: Sequence[str]) -> Request:
    """Parse key=value for known keys and everything else as a path, which may contain "=" like Hydra's sweep folders.

    Raises:
        InvalidSetting: an unknown key, option or source, or an invalid number of lines.
    """
    request = Request()
    keys = ("out", "title", "sort", "axis", "rows", "store", "source", "log", "panels", "project", "entity")
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
    for key in ("log", "panels"):
        if getattr(request, key) not in ("none", "wandb"):
            raise InvalidSetting(key, getattr(request, key), "none or wandb")
    if request.store is not None and not request.rebuild:
        raise InvalidSetting("store", request.store, "is a file that --rebuild writes")
    if request.axis not in AXIS_NAMES:
        raise InvalidSetting("axis", request.axis, f"is one of {', '.join(AXIS_NAMES)}")
    if request.rows != "all" and not (request.rows.isdecimal() and int(request.rows)):
        raise InvalidSetting("rows", request.rows, "a number of lines above 0, or all")
    return request


def _lines(file: Path) -> list[str]:
    """Lines of a search's list of runs."""
    try:
        text = read_text_bounded(file)
        if "\0" in text:
            raise Unreadable("holds a null character, which no path has")
    except Unreadable as error:
        raise InvalidSetting("results", file, str(error)) from None
    return text.splitlines()
