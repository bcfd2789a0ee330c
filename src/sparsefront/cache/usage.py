"""Which stored stages each result was made from."""

from collections.abc import Sequence

from sparsefront.cache.inventory import Inventory, Stored
from sparsefront.cache.results import Run

Usage = dict[str, list[Run]]  # key of a stored stage -> the results that were made from it


def find_usage(inventory: Inventory, runs: Sequence[Run]) -> Usage:
    """Every stage that a result was made from, over however many stages between, and the stages that hold the result itself:
    with and without a control there are two, and only one of them is made from it.
    """
    usage: Usage = {item.key: [] for item in inventory.stored if item.finished}
    results = [item for item in inventory.stored if item.finished and item.stage == "result"]
    for run in runs:
        holders = {item.key for item in results if run.run_id in item.made_from}
        for key in _all_before(inventory, run.starts | holders):
            usage[key].append(run)
    return usage


def only_of(usage: Usage, item: Stored, runs: Sequence[Run]) -> bool:
    """Whether the stage is used, and by none but these results."""
    users = usage.get(item.key, [])
    return bool(users) and all(user in runs for user in users)


def _all_before(inventory: Inventory, starts: set[str]) -> set[str]:
    """The stages with these keys, all that their run had used, and what those were made from."""
    known, found = inventory.by_key, set()
    left = list(starts.union(*(known[key].used for key in starts if key in known)))
    while left:
        key = left.pop()
        if key in known and key not in found:
            found.add(key)
            left += known[key].made_from
    return found
