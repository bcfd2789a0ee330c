"""The assignment with the least sum of errors within a latency."""

from collections.abc import Mapping

from sparsefront.allocation.choice_table import ROW_MAJOR, Assignment, ChoiceTable
from sparsefront.allocation.knapsack import State, Way, choose_along
from sparsefront.allocation.picoseconds import at_least, at_most


def solve(table: ChoiceTable, budget_us: float, *, bins: int) -> Assignment | None:
    """The best assignment within a budget; None where even the fastest exceeds it. See `knapsack.choose_along`.

    All blocks of a chain run in one layout, as the swap has it; the layout is chosen together with the patterns.
    """
    items = [
        [
            Way(number, layout, at_most(time_us), option.error)
            for number, option in enumerate(item.options)
            for layout, time_us in option.times_us.items()
        ]
        for item in table.items
    ]
    budget = at_least(budget_us) - at_most(table.rest_us)
    chosen = choose_along(items, _changes(table), budget, start=ROW_MAJOR, bins=bins)
    if chosen is None:
        return None
    layouts = {
        item.chain: layout for item, (_, layout) in zip(table.items, chosen, strict=True) if item.chain is not None
    }
    return Assignment(tuple(option for option, _ in chosen), layouts)


def dense_assignment(table: ChoiceTable) -> Assignment:
    """Every layer dense."""
    layouts = {chain: next(iter(layouts)) for chain, layouts in table.layouts_us.items()}
    return Assignment((0,) * len(table.items), layouts)


def least_us(table: ChoiceTable) -> float:
    """Microseconds of the fastest assignment."""
    outside = sum(min(option.times_us[ROW_MAJOR] for option in item.options) for item in table.items if not item.chain)
    chains = 0.0
    for chain, layouts in table.layouts_us.items():
        inside = [item for item in table.items if item.chain == chain]
        chains += min(
            extra + sum(min(option.times_us[layout] for option in item.options) for item in inside)
            for layout, extra in layouts.items()
        )
    return table.rest_us + outside + chains


def _changes(table: ChoiceTable) -> list[Mapping[tuple[State, State], int]]:
    """Per item what a change of layout before it takes: the layout of a chain is chosen where it begins, and stays."""
    changes: list[Mapping[tuple[State, State], int]] = []
    before, states = None, [ROW_MAJOR]
    for item in table.items:
        extra = {ROW_MAJOR: 0.0} if item.chain is None else table.layouts_us[item.chain]
        if item.chain is not None and item.chain == before:
            changes.append({(layout, layout): 0 for layout in extra})
        else:
            changes.append({(state, layout): at_most(us) for state in states for layout, us in extra.items()})
        before, states = item.chain, list(extra)
    return changes
