"""Which results were made from a cache: runs found in the folders of results that ever used it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.access import unreadable
from sparsefront.artifacts.bounded_files import Unreadable, read_bytes_bounded, read_json_bounded
from sparsefront.artifacts.csv_lines import TEXT, read_table_text
from sparsefront.artifacts.walk import below_with_links
from sparsefront.printable import printable
from sparsefront.report.csv_text import parse_lines, whole_lines
from sparsefront.report.store import RESULT_FILE, STORE_FILE
from sparsefront.run_folder import LINK

MOST_LIST_BYTES = 2**20
FOLDERS_FILE = "results_folders.txt"  # in the cache folder: paths relative to it, a line each


def remember_results(cache: Path, results: Path) -> None:
    """Note that a folder of results uses the cache; one that cannot be noted must be named to the command."""
    line = os.path.relpath(results.resolve(), cache.resolve())
    with suppress(OSError, ValueError):
        text = _text(cache)
        if line not in text.split("\n"):
            with (cache / FOLDERS_FILE).open("a", **TEXT) as file:
                file.write(f"{line}\n" if text.endswith("\n") or not text else f"\n{line}\n")


def remembered_results(cache: Path) -> tuple[list[Path], list[str]]:
    """The folders of results that used the cache, some of which may have been removed since; and why others are not known, since
    the list, or a line of it, is damaged.
    """
    file = cache / FOLDERS_FILE
    try:
        text = _text(cache)
    except ValueError as error:
        return [], [f"{file}: {error}"]
    folders, problems = [], []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        folder = Path(os.path.normpath(cache.resolve() / line))
        # a path may hold any byte, but one that was damaged leads nowhere
        if not line or printable(line) != line and ("\0" in line or not folder.is_dir()):
            problems.append(f"{file}, line {number}: is no path of a folder ({line[:80]!r})")
        else:
            folders.append(folder)
    return folders, problems


@dataclass(frozen=True)
class Run:
    """A result: all run folders with one record, which differ in when it was shown.

    Args:
        names: of the folders, below the folder of results, the newest last; `folders` are their paths.
        starts: keys of stages from which the record was written.
    """

    run_id: str
    label: str
    names: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    starts: set[str] = field(default_factory=set)

    def is_called(self, name: str) -> bool:
        """Whether a user means this run: by the path or the name of a folder, or the id of the record."""
        named = name.rstrip("/")
        resolved = Path(named).resolve()
        return named in (self.run_id, *self.names) or any(
            folder.resolve() == resolved or folder.name == named for folder in self.folders
        )


@dataclass(frozen=True)
class Results:
    """The runs of some folders, and the records that could not be read, each with its reason."""

    runs: list[Run]
    problems: list[str]


def read_results(folders: Iterable[Path]) -> Results:
    """The runs of some folders of results. As in `compare`: every row.json at any depth and in linked folders, where there is
    none, rows.csv.
    """
    runs: dict[str, Run] = {}
    problems: list[str] = []
    for folder in folders:
        closed: list[Path] = []
        found = sorted(below_with_links(folder, (RESULT_FILE, STORE_FILE), but=LINK, closed=closed.append))
        problems += [str(unreadable(one, otherwise="have its owner remove what is unused")) for one in closed]
        files = [file for file in found if file.name == RESULT_FILE] or found
        for file in files:
            try:
                records = [read_json_bounded(file)] if file.name == RESULT_FILE else _csv_records(file)
                for record in records:
                    _add(runs, record, file.parent, folder)
            except ValueError as error:
                problems.append(f"{file}: {error}")
            except (KeyError, TypeError) as error:
                problems.append(f"{file}: no result of a run ({type(error).__name__}: {error})")
    return Results(list(runs.values()), problems)


def _add(runs: dict[str, Run], record: dict[str, Any], place: Path, folder: Path) -> None:
    identity, choice = record["identity"], record["choice"]
    run_id, checkpoint = identity["run_id"], identity.get("checkpoint")
    if not all(isinstance(text, str) for text in (run_id, choice["pattern"], checkpoint or "")):
        raise TypeError("run_id, pattern and checkpoint are texts")
    sparsity = "" if choice["pattern"] == "dense" else f" {record['sparsity']['sparsity_target']}"
    label = f"{choice['pattern']}{sparsity}"
    run = runs.setdefault(run_id, Run(run_id, label))
    run.names.append(place.relative_to(folder).as_posix())
    run.folders.append(place)
    run.starts.update({run_id} if not checkpoint else {run_id, Path(checkpoint).name})


def _csv_records(file: Path) -> list[dict[str, Any]]:
    """The lines of a rows.csv, nested as far as they are read here."""
    _, lines = parse_lines(whole_lines(read_table_text(file)))
    return [
        {"identity": line, "choice": line, "sparsity": {"sparsity_target": line["sparsity_target"]}} for line in lines
    ]


def _text(cache: Path) -> str:
    """Of the list of folders; empty where there is none."""
    file = cache / FOLDERS_FILE
    if not os.path.lexists(file):
        return ""
    content = read_bytes_bounded(file, max_bytes=MOST_LIST_BYTES)
    if not content:
        raise Unreadable("is empty")
    return content.decode(**TEXT)
