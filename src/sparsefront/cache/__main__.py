"""python -m sparsefront.cache [show | check | remove ...]"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from rich.table import Table

from sparsefront.artifacts.durable import explain_denial
from sparsefront.artifacts.store import damage_of, read_record, remove_leftovers
from sparsefront.cache.inventory import (
    Inventory,
    Results,
    Run,
    Stored,
    Usage,
    disk_bytes,
    find_usage,
    list_results,
    only_of,
    read_inventory,
    read_results,
    remove,
    sum_bytes,
)
from sparsefront.errors import InvalidSetting, printable
from sparsefront.options import program_command
from sparsefront.progress import counted, exit_quietly_on_broken_pipe
from sparsefront.results.terminal import add_row, print_table, table_console

MOST_RUNS = 20  # lines of the table of runs, unless all are requested


def select(options: argparse.Namespace, inventory: Inventory, usage: Usage, results: Results) -> list[Stored]:
    """Find the stages that meet all conditions of `remove`.

    Raises:
        InvalidSetting: an unknown run or stage.
    """
    known = {item.stage for item in inventory.stored}
    missing = [stage for stage in options.stage if stage not in known]
    if missing:
        raise InvalidSetting("--stage", missing[0], f"is not in the cache; there are {', '.join(sorted(known))}")
    runs: list[Run] = []
    for name in options.run:
        runs += (named_runs := [run for run in results.runs if run.is_called(name)])
        if not named_runs:
            where = f"no such run among {len(results.runs)} results; name its folder, or the run_id of its result"
            raise InvalidSetting("--run", name, where)
    now = time.time()
    return [
        item
        for item in inventory.stored
        if item.finished is not options.unfinished
        and (not options.stage or item.stage in options.stage)
        and (options.older_than_s is None or now - item.last_used > options.older_than_s)
        and not (options.unused and usage[item.key])
        and (not runs or only_of(usage, item, runs))
        and not (options.damaged and damage_of(item.path) is None)
    ]


def stages_table(inventory: Inventory) -> Table:
    """Number and size of stored stages, by stage; files that stages share count for the first one."""
    table = _table("By stage", "stage", "stored", "size", "unfinished")
    charged: set[tuple[int, int]] = set()
    for stage in dict.fromkeys(item.stage for item in inventory.stored):
        items = [item for item in inventory.stored if item.stage == stage]
        files = [file for item in items for file in item.files if file.identity not in charged]
        charged |= {file.identity for file in files}
        left = disk_bytes(file for item in items if not item.finished for file in item.files)
        finished = sum(item.finished for item in items)
        add_row(table, stage, str(finished), decimal(disk_bytes(files)), decimal(left) if left else "–")
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
        lines.append((sum_bytes(own), disk_bytes(file for item in shared for file in item.files), run))
    lines.sort(key=lambda line: -line[0])
    for own_bytes, shared_bytes, run in lines[:most]:
        again = f" (shown {len(run.names)} times)" if len(run.names) > 1 else ""
        add_row(table, run.names[0] + again, run.label, decimal(own_bytes), decimal(shared_bytes))
    if most is not None and len(lines) > most:
        add_row(table, f"and {len(lines) - most} more: --all", "", "", "")
    unused = [item for item in inventory.by_key.values() if not usage[item.key]]
    table.add_section()
    add_row(table, f"used by no result: {counted(len(unused), 'stage')}", "", decimal(sum_bytes(unused)), "")
    return table


def items_table(title: str, items: Sequence[Stored], usage: Usage) -> Table:
    """List stages: size, last use, and the results that use them."""
    table = _table(title, "stage", "size", "last used", "used by", "folder")
    for item in items:
        count = len(usage[item.key]) if item.finished else None
        users = "–" if count is None else counted(count, "result") if count else "no result"
        hours = (time.time() - item.last_used) / 3600
        age = f"{hours:.0f} h ago" if hours < 48 else f"{hours / 24:.0f} days ago"
        where = f"{item.stage}/{item.path.name}"
        add_row(
            table, item.stage, decimal(disk_bytes(item.files)), age if hours >= 1 else "within the hour", users, where
        )
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        number = heading in ("stored", "size", "unfinished", "its own", "shared with other runs")
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return table


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
        damage = damage_of(item.path)
        if damage is not None:
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
    inventory, results = _inventory(options), _results(options)
    if inventory.unreadable and (options.unused or options.run):  # unreadable stages may use others
        raise InvalidSetting("remove", "", f"what is used is not certain: {inventory.unreadable[0]}")
    if options.unused and results.problems:
        remedy = "fix or remove the records that cannot be read"
        raise InvalidSetting("--unused", "", f"what is used is not certain: {remedy}")
    if options.unused and not results.runs:
        raise InvalidSetting("--unused", "", "there are no results at all, so everything is: name their --results-dir")
    usage = find_usage(inventory, results.runs)
    items = select(options, inventory, usage, results)
    if not items:
        print("nothing in the cache meets these conditions")
        return 0
    if not options.yes:
        print_table(table_console(), items_table("Would be removed", items, usage))
        free = f"{decimal(sum_bytes(items))} would be free"
        print(f"{counted(len(items), 'stage')}, {free}; nothing was removed: add --yes")
        return 0
    remove_leftovers(inventory.root)
    removed, left = remove(items)
    for path, why in left.items():
        print(printable(f"kept: {path}: {why}"))
    print(f"{counted(len(removed), 'stage')} removed, {decimal(sum_bytes(removed))} free again")
    return 1 if any("cannot" in why for why in left.values()) else 0


def _inventory(options: argparse.Namespace) -> Inventory:
    inventory = read_inventory(options.cache_dir)
    for obstacle in inventory.unreadable:
        print(obstacle, file=sys.stderr)
    return inventory


def _results(options: argparse.Namespace) -> Results:
    """The results of all folders known to use the cache, with a line for each missing folder."""
    requested = [folder.resolve() for folder in options.results_dir]
    missing = [folder for folder in requested if not folder.is_dir()]
    if missing:
        raise InvalidSetting("--results-dir", missing[0], "no such folder")
    remembered, problems = list_results(options.cache_dir)
    for folder in dict.fromkeys(remembered):
        if not folder.is_dir():
            line = f"{folder} used this cache and is not there: its results count as removed"
            print(printable(line), file=sys.stderr)
    folders = dict.fromkeys([*requested, *remembered, Path("results").resolve()])
    results = read_results(folder for folder in folders if folder.is_dir())
    results.problems.extend(f"{one}; delete it, and name folders with --results-dir" for one in problems)
    for problem in results.problems:
        print(printable(f"cannot be read: {problem}"), file=sys.stderr)
    return results


RUN = {"show": _show, "check": _check, "remove": _remove}
"""Functions that run a command with its options and return the exit status."""


COMMANDS = ("show", "check", "remove")
DESCRIPTION = """\
What the finished stages of runs take on the disk, by stage and by run; whether they are damaged; and their removal.
Results are never touched. A stage that was removed is made again by the next run that needs it, with all that it costs.

  COMMAND                            sizes by stage and by run
  COMMAND check                      read everything, name what is damaged (status 1 if any is)
  COMMAND remove --unused            what no result was made from: shown, not removed
  COMMAND remove --unused --yes      ... removed
  COMMAND remove --older-than 30d --stage export
  COMMAND remove --run results/NAME  what this run used and no other
"""
REMOVE = """\
Shows what meets all the conditions that are given; --yes removes it. What a running process makes or uses is kept.
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse options; `command` is show (the default), check or remove."""
    has_command = arguments and (arguments[0] in COMMANDS or not arguments[0].startswith("-"))
    helped = {"-h", "--help"} & {*arguments}
    return _parser().parse_args(arguments if has_command or helped else ["show", *arguments])


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument(
        "--cache-dir", type=Path, default=Path(".cache/sparsefront"), help="cache_dir of the runs (.cache/sparsefront)"
    )
    places.add_argument(
        "--results-dir",
        type=Path,
        action="append",
        default=[],
        help="one more folder of results; `results` and those that runs with this cache wrote to are known",
    )
    name = program_command("cache")
    parser = argparse.ArgumentParser(name, description=DESCRIPTION.replace("COMMAND", name), formatter_class=raw)
    commands = parser.add_subparsers(dest="command", metavar="{show,check,remove}")
    show = commands.add_parser("show", parents=[places], help="sizes by stage and by run (the default)")
    commands.add_parser("check", parents=[places], help="read every file and compare it with its checksum")
    removes = commands.add_parser(
        "remove", parents=[places], help="remove stages: see remove --help", description=REMOVE, formatter_class=raw
    )
    show.add_argument("--all", action="store_true", help="every run, not only the largest")
    removes.add_argument(
        "--unused",
        action="store_true",
        help="what no result was made from; also what a killed run had finished, so --older-than 2d goes well with it",
    )
    removes.add_argument("--older-than", metavar="AGE", help="last used longer ago: 36h, 30d, 2w")
    removes.add_argument("--run", action="append", default=[], help="what this run used and no other: folder or run_id")
    removes.add_argument("--damaged", action="store_true", help="what is not as it was stored (reads everything)")
    removes.add_argument(
        "--unfinished",
        action="store_true",
        help="what killed trainings left to resume from, instead of finished stages",
    )
    removes.add_argument("--stage", action="append", default=[], help="of this stage alone: dense, recover, export ...")
    removes.add_argument("--yes", action="store_true", help="remove it; without this it is only shown")
    return parser


UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def seconds_of(age: str) -> float:
    """Convert `36h`, `30d`, `2w` to seconds.

    Raises:
        InvalidSetting: another format.
    """
    age_match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", age)
    if age_match is None:
        raise InvalidSetting("--older-than", age, "is written as a number with h, d or w: 36h, 30d, 2w")
    return float(age_match[1]) * UNITS_S[age_match[2]]


def _complete(options: argparse.Namespace) -> None:
    """Validate the options and set `older_than_s`, in seconds.

    Raises:
        InvalidSetting: conflicting options, nothing to remove, or no such folder.
    """
    if options.command == "remove":
        options.older_than_s = None if options.older_than is None else seconds_of(options.older_than)
        if options.unfinished and (options.unused or options.run or options.damaged):
            raise InvalidSetting(
                "--unfinished", "", "goes with --older-than and --stage alone: no result is made from it"
            )
        if not (options.unused or options.older_than or options.run or options.damaged or options.unfinished):
            raise InvalidSetting("remove", "", "say what: --unused, --older-than, --run, --damaged or --unfinished")
    if not options.cache_dir.is_dir():
        raise InvalidSetting("--cache-dir", options.cache_dir, "no such folder; it is cache_dir of the runs")


@exit_quietly_on_broken_pipe()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status: 0, or 1 with a message."""
    options = parse(arguments)
    try:
        _complete(options)
        return RUN[options.command](options)
    except InvalidSetting as error:
        setting = " ".join(filter(None, (error.key, "" if error.value is None else str(error.value))))
        print(printable(f"{setting}: {error.allowed}"), file=sys.stderr)
        return 1
    except PermissionError as error:
        print(explain_denial(error, otherwise="name another --cache-dir"), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
