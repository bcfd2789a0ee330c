"""`rows.csv` made again from the `row.json` of each run; results of several stores put into one."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefront.artifacts.csv_lines import TEXT
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import Lease, do_alone
from sparsefront.errors import InvalidSetting
from sparsefront.report.csv_text import format_lines
from sparsefront.report.rank import rank
from sparsefront.report.result import Result, result_fields
from sparsefront.report.store import RESULT_FILE, STORE_FILE, Table, read_results, read_table


@dataclass(frozen=True)
class Rebuilt:
    """What a store holds now: `old`: the runs whose lines were kept since no `row.json` of theirs can be read.

    `kept`: why each line that cannot be read, and was kept as it is, cannot. `problems`: what was left out.
    """

    runs: set[str]
    old: set[str]
    kept: list[str]
    problems: list[str]


def rebuild_store(folder: Path, *, processes: int = 1) -> Rebuilt:
    """Write `rows.csv` of a folder of results anew, whole or not at all; safe beside runs that append to it.

    Lines of runs without a readable `row.json` stay, those that cannot be read too: nothing measured is lost. To drop them,
    delete the file first.

    Raises:
        InvalidSetting: no folder, no `row.json` below it that can be read, or its `rows.csv` is no table of results.
    """
    store = folder / STORE_FILE
    if folder.is_file():
        allowed = f"is a file: name the folder whose {STORE_FILE} is made anew, or with store=FILE.csv a new file for its results"
        raise InvalidSetting("results", folder, allowed)
    if not folder.is_dir():
        raise InvalidSetting("results", folder, "no such folder")

    def rebuild(lease: Lease) -> Rebuilt:
        reading = read_results([folder], processes=processes)
        if not reading.places:
            raise InvalidSetting("results", folder, f"holds no {RESULT_FILE} to make {STORE_FILE} from")
        before = _table_before(store, key="results")
        old = [one for one in before.results if one.identity.run_id not in reading.places]
        lease.require()
        kept = _write(store, [*reading.results, *old], before.unreadable)
        runs = {one.identity.run_id for one in old}
        return Rebuilt(runs | reading.places.keys(), runs, kept, [*reading.problems, *before.problems])

    return do_alone(store, rebuild)


def merge_stores(paths: Sequence[Path], store: Path, *, processes: int = 1) -> Rebuilt:
    """Write one CSV file of all results in some folders and files, its own lines among them where it is there.

    Raises:
        InvalidSetting: no result was found, or the file is there and is no table of results.
    """
    if store.suffix != ".csv":
        raise InvalidSetting("store", store, "must end in .csv")
    store.parent.mkdir(parents=True, exist_ok=True)

    def merge(lease: Lease) -> Rebuilt:
        before = _table_before(store, key="store")
        reading = read_results(paths, processes=processes)
        results = [*reading.results, *before.results]
        if not results:
            raise InvalidSetting("results", " ".join(map(str, paths)), "no results found")
        lease.require()
        kept = _write(store, results, before.unreadable)
        return Rebuilt({one.identity.run_id for one in results}, set(), kept, [*reading.problems, *before.problems])

    return do_alone(store, merge)


def _table_before(store: Path, *, key: str) -> Table:
    """What the file holds that is about to be written anew; what is not ours is never overwritten."""
    try:
        return read_table(store) if os.path.lexists(store) else Table()
    except ValueError as error:
        raise InvalidSetting(
            key, store, f"is not overwritten: {error}; move it away, and {STORE_FILE} is made anew"
        ) from None


def _write(store: Path, results: Iterable[Result], unreadable: dict[str, dict[str, str]]) -> list[str]:
    """One line per `run_id`, that of its highest `rank`, in the order of time; below them the lines that cannot be read, of
    runs that have no other. Returns why each of those cannot be.
    """
    highest = {one.identity.run_id: one for one in sorted(results, key=rank)}
    ordered = sorted(highest.values(), key=lambda result: result.identity.time)
    lines = [{name: "" if value is None else value for name, value in one.flat().items()} for one in ordered]
    kept = {why: cells for why, cells in unreadable.items() if cells.get("run_id") not in highest}
    columns = [field.name for field in result_fields()]
    more = dict.fromkeys(name for cells in kept.values() for name, text in cells.items() if name and text)
    header = [*columns, *(name for name in more if name not in columns)]
    text = format_lines(header, [*lines, *kept.values()], with_header=True)
    with whole_file(store) as new, new.open("w", newline="", **TEXT) as file:
        file.write(text)
    return list(kept)
