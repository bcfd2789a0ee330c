"""What `python -m sparsefront.cache` shows, checks and removes."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table

from sparsefront.artifacts.store import damage_of, read_record, remove_leftovers
from sparsefront.cache.inventory import (
    Inventory,
    Results,
    Run,
    Stored,
    Usage,
    bytes_by_stage,
    disk_bytes,
    find_usage,
    freed_bytes,
    only_of,
    read_inventory,
    read_results,
    remembered_results,
    remove,
)
from sparsefront.errors import InvalidSetting, printable
from sparsefront.progress import counted
from sparsefront.results.terminal import add_row, print_table, table_console

# Selection of stored stages: all given conditions must hold.


@dataclass(frozen=True)
class Selection:
    """Conditions of `remove`.

    Args:
        unused: not used by any result.
        older_than_s: last used more than this many seconds ago.
        runs: names of runs; selects what is used by these and no other result.
        damaged: a file differs from what was stored.
        unfinished: resume state of killed trainings instead of finished stages.
        stages: of one of these stages.
    """

    unused: bool = False
    older_than_s: float | None = None
    runs: tuple[str, ...] = ()
    damaged: bool = False
    unfinished: bool = False
    stages: tuple[str, ...] = ()

    def find(self, inventory: Inventory, usage: Usage, results: Sequence[Run]) -> list[Stored]:
        """Find the stages that meet all conditions.

        Raises:
            InvalidSetting: an unknown run or stage.
        """
        known = {item.stage for item in inventory.stored}
        if missing := [stage for stage in self.stages if stage not in known]:
            raise InvalidSetting("--stage", missing[0], f"is not in the cache; there are {', '.join(sorted(known))}")
        runs = [run for name in self.runs for run in _called(name, results)]
        now = time.time()
        return [item for item in inventory.stored if self._holds(item, usage, runs, now)]

    def _holds(self, item: Stored, usage: Usage, runs: Sequence[Run], now: float) -> bool:
        return (
            item.finished is not self.unfinished
            and (not self.stages or item.stage in self.stages)
            and (self.older_than_s is None or now - item.last_used > self.older_than_s)
            and (not self.unused or not usage[item.key])
            and (not self.runs or only_of(usage, item, runs))
            and (not self.damaged or damage_of(item.path) is not None)
        )


def _called(name: str, results: Sequence[Run]) -> list[Run]:
    runs = [run for run in results if run.is_called(name)]
    if not runs:
        raise InvalidSetting(
            "--run", name, f"no such run among {len(results)} results; name its folder, or the run_id of its result"
        )
    return runs


# Output of the cache command.

DAY_S = 86400.0


def stages_table(inventory: Inventory) -> Table:
    """Number and size of stored stages, by stage."""
    table = _table("By stage", "stage", "stored", "size", "unfinished")
    sizes = bytes_by_stage(inventory)
    for stage, size in sizes.items():
        items = [item for item in inventory.stored if item.stage == stage]
        finished = sum(item.finished for item in items)
        left = disk_bytes(file for item in items if not item.finished for file in item.files)
        add_row(table, stage, str(finished), decimal(size), decimal(left) if left else "–")
    others = {"prepared data": inventory.data, "half-written": inventory.half_written}
    for name, files in others.items():
        if files:
            add_row(table, name, "–", decimal(disk_bytes(files)), "–")
    everything = [file for item in inventory.stored for file in item.files]
    total = disk_bytes([*everything, *inventory.data, *inventory.half_written])
    table.add_section()
    add_row(table, "all", str(len(inventory.by_key)), decimal(total), "")
    table.caption = "An export shares its weights with recover, where they count."
    table.caption_justify = "left"
    return table


def runs_table(inventory: Inventory, usage: Usage, runs: Sequence[Run], *, most: int | None) -> Table:
    """Per run, what would be removed with it and what it shares with others; largest first.

    Args:
        most: maximum number of lines; None = all.
    """
    table = _table("By run", "run", "pattern, sparsity", "its own", "shared with other runs")
    lines = []
    for run in runs:
        items = [item for item in inventory.by_key.values() if run in usage[item.key]]
        own = [item for item in items if only_of(usage, item, [run])]
        shared = [item for item in items if item not in own]
        lines.append((freed_bytes(own), disk_bytes(file for item in shared for file in item.files), run))
    lines.sort(key=lambda line: -line[0])
    for own_bytes, shared_bytes, run in lines[:most]:
        again = f" (shown {len(run.names)} times)" if len(run.names) > 1 else ""
        add_row(table, run.names[0] + again, run.label, decimal(own_bytes), decimal(shared_bytes))
    if most is not None and len(lines) > most:
        add_row(table, f"and {len(lines) - most} more: --all", "", "", "")
    unused = [item for item in inventory.by_key.values() if not usage[item.key]]
    table.add_section()
    add_row(table, f"used by no result: {counted(len(unused), 'stage')}", "", decimal(freed_bytes(unused)), "")
    return table


def items_table(title: str, items: Sequence[Stored], usage: Usage | None = None) -> Table:
    """List stages: size, last use, and the results that use them.

    Args:
        usage: None if unknown.
    """
    table = _table(title, "stage", "size", "last used", "used by", "folder")
    for item in items:
        users = "–" if usage is None or not item.finished else _users(usage[item.key])
        age = time.time() - item.last_used
        add_row(table, item.stage, decimal(disk_bytes(item.files)), _ago(age), users, f"{item.stage}/{item.path.name}")
    return table


def _users(runs: Sequence[Run]) -> str:
    return counted(len(runs), "result") if runs else "no result"


def _ago(seconds: float) -> str:
    if seconds < 3600:
        return "within the hour"
    return f"{seconds / 3600:.0f} h ago" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days ago"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        number = heading in ("stored", "size", "unfinished", "its own", "shared with other runs")
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return table


MOST_RUNS = 20  # lines of the table of runs, unless all are requested


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
    unread = f", {len(inventory.unreadable)} more cannot be read" if inventory.unreadable else ""
    print(f"{counted(len(items), 'stage')}, {size}: {len(damaged)} damaged{without}{unread}")
    if damaged:
        print("a run that meets a damaged stage makes it again; `remove --damaged --yes` removes them now")
    return 1 if damaged or inventory.unreadable else 0


def _remove(options: argparse.Namespace) -> int:
    selection = Selection(
        unused=options.unused,
        older_than_s=options.older_than_s,
        runs=tuple(options.run),
        damaged=options.damaged,
        unfinished=options.unfinished,
        stages=tuple(options.stage),
    )
    inventory, results = _inventory(options), _results(options)
    if inventory.unreadable and (selection.unused or selection.runs):  # unreadable stages may use others
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
    inventory = read_inventory(options.cache_dir)
    for obstacle in inventory.unreadable:
        print(obstacle, file=sys.stderr)
    return inventory


def _results(options: argparse.Namespace) -> Results:
    """The results of all folders known to use the cache, with a line for each missing folder."""
    requested = list(dict.fromkeys(folder.resolve() for folder in options.results_dir))
    listed, problems = remembered_results(options.cache_dir)
    remembered = [folder for folder in listed if folder not in requested]
    for folder in requested:
        if not folder.is_dir():
            raise InvalidSetting("--results-dir", folder, "no such folder")
    for folder in remembered:
        if not folder.is_dir():
            print(
                printable(f"{folder} used this cache and is not there: its results count as removed"), file=sys.stderr
            )
    default = Path("results").resolve()
    folders = dict.fromkeys([*requested, *remembered, default])
    results = read_results(folder for folder in folders if folder.is_dir())
    results.problems.extend(f"{one}; delete it, and name folders with --results-dir" for one in problems)
    for problem in results.problems:
        print(printable(f"cannot be read: {problem}"), file=sys.stderr)
    return results


def _require_certain(options: argparse.Namespace, results: Results) -> None:
    """Never consider anything unused if the users are not fully known."""
    if results.problems:
        raise InvalidSetting(
            "--unused", "", "what is used is not certain: fix or remove the records that cannot be read"
        )
    if not results.runs:
        raise InvalidSetting("--unused", "", "there are no results at all, so everything is: name their --results-dir")


RUN = {"show": _show, "check": _check, "remove": _remove}
"""Functions that run a command with its options and return the exit status."""
