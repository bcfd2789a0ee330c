"""Which results were made from a cache: runs found in the folders of results that ever used it."""

import csv
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefront.artifacts.access import unreadable
from sparsefront.artifacts.walk import below_with_links
from sparsefront.report.store import RESULT_FILE, STORE_FILE
from sparsefront.run_folder import LINK

FOLDERS_FILE = "results_folders.txt"  # in the cache folder: paths relative to it, a line each


def remember_results(cache: Path, results: Path) -> None:
    """Note that a folder of results uses the cache; one that cannot be noted must be named to the command."""
    line = os.path.relpath(results.resolve(), cache.resolve())
    with suppress(OSError):
        if line not in _lines(cache):
            with (cache / FOLDERS_FILE).open("a") as file:
                file.write(f"{line}\n")


def remembered_results(cache: Path) -> list[Path]:
    """The folders of results that used the cache; some may have been removed since."""
    return [Path(os.path.normpath(cache.resolve() / line)) for line in _lines(cache)]


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
                records = [json.loads(file.read_text())] if file.name == RESULT_FILE else _csv_records(file)
                for record in records:
                    _add(runs, record, file.parent, folder)
            except (OSError, ValueError, KeyError, TypeError) as error:
                problems.append(f"{file}: {type(error).__name__}: {error}")
    return Results(list(runs.values()), problems)


def _add(runs: dict[str, Run], record: dict[str, Any], place: Path, folder: Path) -> None:
    identity, choice = record["identity"], record["choice"]
    run_id, checkpoint = identity["run_id"], identity.get("checkpoint")
    sparsity = "" if choice["pattern"] == "dense" else f" {record['sparsity']['sparsity_target']}"
    label = f"{choice['pattern']}{sparsity}"
    run = runs.setdefault(run_id, Run(run_id, label))
    run.names.append(place.relative_to(folder).as_posix())
    run.folders.append(place)
    run.starts.update({run_id} if not checkpoint else {run_id, Path(checkpoint).name})


def _csv_records(file: Path) -> list[dict[str, Any]]:
    """The lines of a rows.csv, nested as far as they are read here."""
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
        return [
            {"identity": line, "choice": line, "sparsity": {"sparsity_target": line["sparsity_target"]}}
            for line in csv.DictReader(lines)
        ]


def _lines(cache: Path) -> list[str]:
    file = cache / FOLDERS_FILE
    return file.read_text().splitlines() if file.exists() else []
