"""What the cache command prints."""

import time
from collections.abc import Sequence

from rich import box
from rich.filesize import decimal
from rich.table import Table

from sparsefront.cache.inventory import Inventory, Stored, bytes_by_stage, disk_bytes, freed_bytes
from sparsefront.cache.results import Run
from sparsefront.cache.usage import Usage, only_of
from sparsefront.counted import counted
from sparsefront.report.table import add_row

DAY_S = 86400.0


def stages_table(inventory: Inventory) -> Table:
    """Stage by stage: how many are stored, and their size."""
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
    """Run by run: what would go with it, and what it shares with others; the largest first.

    Args:
        most: lines at most; None = all.
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
    """Stages one by one: size, last use, and the results that were made from them.

    Args:
        usage: None where it is not known.
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
