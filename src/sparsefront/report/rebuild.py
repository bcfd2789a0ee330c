"""`rows.csv` made again from the `row.json` of each run; results of several stores put into one."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import held_alone
from sparsefront.errors import InvalidSetting
from sparsefront.report.csv_text import TEXT, format_lines
from sparsefront.report.rank import rank
from sparsefront.report.result import Result, result_fields
from sparsefront.report.store import RESULT_FILE, STORE_FILE, Reading, read_results


def rebuild_store(folder: Path, *, processes: int = 1) -> Reading:
    """Write `rows.csv` of a folder of results anew, whole or not at all; safe beside runs that append to it.

    Lines of runs without a readable `row.json` stay: nothing measured is lost. To drop them, delete the file first.

    Returns:
        what is in it now, and what could not be read.
    Raises:
        InvalidSetting: there is no `row.json` below the folder that can be read.
    """
    store = folder / STORE_FILE
    if not folder.is_dir():
        raise InvalidSetting("results", folder, "no such folder")
    with held_alone(store):
        reading = read_results([folder], processes=processes)
        if not reading.folders:
            raise InvalidSetting("results", folder, f"holds no {RESULT_FILE} to make {STORE_FILE} from")
        before = read_results([store]) if store.exists() else Reading()
        reading.results += [one for one in before.results if one.identity.run_id not in reading.folders]
        reading.problems += before.problems
        _write(store, reading.results)
    return reading


def merge_stores(paths: Sequence[Path], store: Path, *, processes: int = 1) -> Reading:
    """Write one CSV file of all results in some folders and files, its own lines among them where it is there.

    Raises:
        InvalidSetting: no result was found.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    with held_alone(store):
        reading = read_results([*paths, *([store] if store.exists() else [])], processes=processes)
        if not reading.results:
            raise InvalidSetting("results", " ".join(map(str, paths)), "no results found")
        _write(store, reading.results)
    return reading


def _write(store: Path, results: Iterable[Result]) -> None:
    """One line per `run_id`, that of its highest `rank`, in the order of time."""
    highest = {one.identity.run_id: one for one in sorted(results, key=rank)}
    ordered = sorted(highest.values(), key=lambda result: result.identity.time)
    cells = ({name: "" if value is None else value for name, value in one.flat().items()} for one in ordered)
    text = format_lines([field.name for field in result_fields()], cells, with_header=True)
    with whole_file(store) as new, new.open("w", newline="", **TEXT) as file:
        file.write(text)
