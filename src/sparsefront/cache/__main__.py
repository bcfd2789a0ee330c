"""python -m sparsefront.cache [show | check | remove ...]"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from sparsefront.artifacts.access import denied
from sparsefront.artifacts.leftovers import remove_leftovers
from sparsefront.artifacts.record import damage_of, read_record
from sparsefront.cache.arguments import parse
from sparsefront.cache.inventory import Inventory, disk_bytes, freed_bytes, read_inventory
from sparsefront.cache.removal import remove
from sparsefront.cache.results import Results, read_results, remembered_results
from sparsefront.cache.selection import Selection, seconds_of
from sparsefront.cache.tables import items_table, runs_table, stages_table
from sparsefront.cache.usage import find_usage
from sparsefront.counted import counted
from sparsefront.errors import InvalidSetting
from sparsefront.printable import printable
from sparsefront.report.printing import print_table
from sparsefront.report.table import table_console
from sparsefront.standard_output import ending_with_its_reader

MOST_RUNS = 20  # lines of the table by run, unless all are asked for


@ending_with_its_reader()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status: 0, or 1 with a message."""
    options = parse(arguments)
    commands = {"show": _show, "check": _check, "remove": _remove}
    try:
        return commands[options.command](options)
    except InvalidSetting as error:
        named = " ".join(filter(None, (error.key, "" if error.value is None else str(error.value))))
        print(printable(f"{named}: {error.allowed}"), file=sys.stderr)
        return 1
    except PermissionError as error:
        print(denied(error, otherwise="name another --cache-dir"), file=sys.stderr)
        return 1


def _show(options: argparse.Namespace) -> int:
    inventory, console = _inventory(options), table_console()
    results = _results(options)
    usage = find_usage(inventory, results.runs)
    print_table(console, stages_table(inventory))
    print_table(console, runs_table(inventory, usage, results.runs, most=None if options.all else MOST_RUNS))
    return 0


def _check(options: argparse.Namespace) -> int:
    inventory = _inventory(options)
    items, unknown, damaged = list(inventory.by_key.values()), 0, []
    terminal = Console(stderr=True)
    for item in track(items, "check", console=terminal, transient=True, disable=not terminal.is_terminal):
        if (damage := damage_of(item.path)) is not None:
            damaged.append(item)
            print(printable(f"{item.path}: {damage}"))
        elif "files" not in read_record(item.path):
            unknown += 1
    without = f", {unknown} of them without checksums (stored by an earlier version)" if unknown else ""
    size = decimal(disk_bytes(file for item in items for file in item.files))
    print(f"{counted(len(items), 'stage')}, {size}: {len(damaged)} damaged{without}")
    if damaged:
        print("a run that meets a damaged stage makes it again; `remove --damaged --yes` removes them now")
    return 1 if damaged else 0


def _remove(options: argparse.Namespace) -> int:
    age = None if options.older_than is None else seconds_of(options.older_than)
    selection = Selection(
        unused=options.unused,
        older_than_s=age,
        runs=tuple(options.run),
        damaged=options.damaged,
        unfinished=options.unfinished,
        stages=tuple(options.stage),
    )
    inventory, results = _inventory(options), _results(options)
    if inventory.unreadable and (selection.unused or selection.runs):  # what those were made from is not known
        raise InvalidSetting("remove", "", f"what is used is not certain: {inventory.unreadable[0]}")
    if selection.unused:
        _require_certain(options, results)
    usage = find_usage(inventory, results.runs)
    items = selection.find(inventory, usage, results.runs)
    if not items:
        print("nothing in the cache meets these conditions")
        return 0
    if not options.yes:
        print_table(table_console(), items_table("Would be removed", items, usage))
        print(
            f"{counted(len(items), 'stage')}, {decimal(freed_bytes(items))} would be free; nothing was removed: add --yes"
        )
        return 0
    remove_leftovers(inventory.root)
    removal = remove(items)
    for path, why in removal.kept.items():
        print(printable(f"kept: {path}: {why}"))
    print(f"{counted(len(removal.removed), 'stage')} removed, {decimal(freed_bytes(removal.removed))} free again")
    return 1 if any("cannot" in why for why in removal.kept.values()) else 0


def _inventory(options: argparse.Namespace) -> Inventory:
    if not options.cache_dir.is_dir():
        raise InvalidSetting("--cache-dir", options.cache_dir, "no such folder; it is cache_dir of the runs")
    inventory = read_inventory(options.cache_dir)
    for obstacle in inventory.unreadable:
        print(obstacle, file=sys.stderr)
    return inventory


def _results(options: argparse.Namespace) -> Results:
    """The results of all folders that are known to use the cache, with a line for each that is not there."""
    named = list(dict.fromkeys(folder.resolve() for folder in options.results_dir))
    listed, problems = remembered_results(options.cache_dir)
    remembered = [folder for folder in listed if folder not in named]
    for folder in named:
        if not folder.is_dir():
            raise InvalidSetting("--results-dir", folder, "no such folder")
    for folder in remembered:
        if not folder.is_dir():
            print(
                printable(f"{folder} used this cache and is not there: its results count as removed"), file=sys.stderr
            )
    default = Path("results").resolve()
    folders = dict.fromkeys([*named, *remembered, default])
    results = read_results(folder for folder in folders if folder.is_dir())
    results.problems.extend(f"{one}; delete it, and name folders with --results-dir" for one in problems)
    for problem in results.problems:
        print(printable(f"cannot be read: {problem}"), file=sys.stderr)
    return results


def _require_certain(options: argparse.Namespace, results: Results) -> None:
    """Nothing counts as unused where it is not known what is used."""
    if results.problems:
        raise InvalidSetting(
            "--unused", "", "what is used is not certain: fix or remove the records that cannot be read"
        )
    if not results.runs:
        raise InvalidSetting("--unused", "", "there are no results at all, so everything is: name their --results-dir")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
