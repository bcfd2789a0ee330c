"""One choice per item within a budget of time, at the least loss: a knapsack, and exchanges that improve it."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

# Measured times as whole numbers, in which they add up without rounding.

PER_MICROSECOND = 10**6


def at_most(latency_us: float) -> int:
    """Whole picoseconds, rounded up: a time is never taken for shorter than it was measured."""
    return math.ceil(_picoseconds(latency_us))


def at_least(latency_us: float) -> int:
    """Whole picoseconds, rounded down: what may be spent, or is saved, is never overstated."""
    return math.floor(_picoseconds(latency_us))


def _picoseconds(latency_us: float) -> float:
    # The digits that go here are what a product of decimal numbers leaves behind; no timer sees them.
    return round(latency_us * PER_MICROSECOND, 3)


# What a search for a latency chooses from: per product of a network its patterns and sparsities, with times and
# errors.

ROW_MAJOR = "row_major"  # how activations lie where the network begins and ends, and in every layer outside of blocks


@dataclass(frozen=True)
class Option:
    """A pattern at a sparsity, or dense.

    Args:
        pattern: number of the candidate; None = dense.
        sparsity: of every layer of the item; 0 = dense.
        error: that it causes on calibration inputs, summed over the item's layers and weighed by what errors of this item do to
            the loss; see `latency_search.evaluating`.
        times_us: layout of the activations -> microseconds of the fastest kernel.
        kernels: layout -> that kernel.
    """

    pattern: int | None
    sparsity: float
    error: float = 0.0
    times_us: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """Layers that are one product, as query, key and value are, and so have one pattern and sparsity.

    Args:
        layers: by their names in the network.
        chain: of blocks that are rewritten in one layout; None outside of them.
        options: the first one is dense.
    """

    layers: tuple[str, ...]
    chain: str | None
    options: Sequence[Option]

    def undominated(self, layout: str) -> list[int]:
        """Numbers of dense and of the options that no other one beats in time or error without losing in the other."""
        costs = [(option.times_us[layout], option.error) for option in self.options]
        return [
            number
            for number, (time_us, error) in enumerate(costs)
            if number == 0 or not any(us <= time_us and e <= error and (us, e) != (time_us, error) for us, e in costs)
        ]


@dataclass(frozen=True)
class ChoiceTable:
    """A network's items in the order of their calls.

    Args:
        patterns: of the candidates, in words.
        layouts_us: chain -> layout -> microseconds that this layout adds to the chain, in all that is no product: changes of
            layout where the chain begins and ends, and its norms. 0 for one of them.
        rest_us: microseconds of the network beside products and `layouts_us`.
        dense_us: of the dense network in its fastest version.
        seconds: that it took to measure.
        dense_versions: of the dense network that a measurement times; see `measure.fastest.Execution.versions`.
    """

    patterns: Sequence[str]
    items: Sequence[Item]
    layouts_us: Mapping[str, Mapping[str, float]]
    rest_us: float
    dense_us: float
    seconds: float = 0.0
    dense_versions: Sequence[str] = ()

    def time_us(self, assignment: "Assignment") -> float:
        """Predicted microseconds of the network."""
        products = sum(
            item.options[option].times_us[assignment.layout_of(item)]
            for item, option in zip(self.items, assignment.options, strict=True)
        )
        return (
            self.rest_us
            + products
            + sum(self.layouts_us[chain][layout] for chain, layout in assignment.layouts.items())
        )

    def error(self, assignment: "Assignment") -> float:
        """The sum of the errors."""
        return sum(item.options[option].error for item, option in zip(self.items, assignment.options, strict=True))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ChoiceTable":
        """What `to_json` gave."""
        items = [
            Item(tuple(item["layers"]), item["chain"], [Option(**option) for option in item["options"]])
            for item in content["items"]
        ]
        return cls(**{**content, "items": items})


@dataclass(frozen=True)
class Assignment:
    """A choice for the whole network.

    Args:
        options: per item the number of its option.
        layouts: chain -> layout.
    """

    options: tuple[int, ...]
    layouts: Mapping[str, str] = field(default_factory=dict)

    def layout_of(self, item: Item) -> str:
        """How activations lie in an item."""
        return ROW_MAJOR if item.chain is None else self.layouts[item.chain]


# One choice per item within a budget of time, at the least loss: a multiple-choice knapsack by dynamic programming.

State = str
Chosen = list[tuple[int, State]]


@dataclass(frozen=True)
class Way:
    """One way of doing an item.

    Args:
        choice: its number among the choices of the item.
        state: how the item is done (the layout that activations have in it); a change of state costs time.
        time: a whole number.
        loss: finite.
    """

    choice: int
    state: State
    time: int
    loss: float


@dataclass(frozen=True, eq=False)
class _Totals:
    """Totals of the items so far that end in one state, by ascending time and so descending loss, and where each is from: the
    state before, the place among its totals, and the way.
    """

    time: np.ndarray
    loss: np.ndarray
    before: list[tuple[State, int, Way]]


def choose_along(
    items: Sequence[Sequence[Way]],
    changes: Sequence[Mapping[tuple[State, State], int]],
    budget: int,
    *,
    start: State,
    bins: int,
) -> Chosen | None:
    """The choices along a chain of items with the least total loss whose time, changes of state included, is within the budget.

    Item after item and per state, the best totals so far are kept: those that no other beats in both time and loss. Times are
    whole numbers and add up exactly, so the budget is never exceeded. While at most `bins` totals are alive in a state, the
    result is the best there is. Beyond that, only the one with the least loss is kept in each of `bins` equal intervals of
    time (and the fastest of all); the result then loses no more than the best for a budget that is smaller by one interval
    per item. What is kept does not depend on the budget, so a smaller budget never loses less.

    Args:
        items: per item its ways. Of equal time and loss, those that come first win.
        changes: per item, (state before, state in it) -> time; a pair that is absent cannot be. Before the first item the
            state is `start`.
        budget: in the unit of times.
        bins: totals to keep, at least 1.
    Returns:
        per item its choice and state, or None where even the fastest exceed the budget.
    Source: Frantar and Alistarh, "SPDY: Accurate Pruning with Speedup Guarantees", 2022, and Shen et al., "Structural
        Pruning via Latency-Saliency Knapsack" (HALP), 2022, solve this by dynamic programming over discretized time.
        Departures: they round every time to the grid; here the grid only limits how many exact totals are kept. And they
        know no states.
    """
    longest = sum(max((way.time for way in ways), default=0) for ways in items)
    longest += sum(max(times.values(), default=0) for times in changes)
    width = max(1, -(-longest // bins))
    totals = {start: _Totals(np.zeros(1, np.int64), np.zeros(1), [])}
    history = []
    for ways, times in zip(items, changes, strict=True):
        totals = {
            state: _kept(found, width=width, bins=bins)
            for state in dict.fromkeys(way.state for way in ways)
            if (found := _extended(totals, [way for way in ways if way.state == state], times, state)) is not None
        }
        history.append(totals)
    return _traced_back(history, totals, budget)


def choose_within(
    times: Sequence[Sequence[int]], losses: Sequence[Sequence[float]], budget: int, *, bins: int
) -> list[int] | None:
    """`choose_along` where there is one state and no change.

    Args:
        times: per item, per choice, at least 0.
        losses: the same layout; finite.
    Returns:
        per item the index of its choice, or None where even the fastest choices exceed the budget.
    """
    items = [
        [Way(choice, "", time, loss) for choice, (time, loss) in enumerate(zip(item_times, item_losses, strict=True))]
        for item_times, item_losses in zip(times, losses, strict=True)
    ]
    chosen = choose_along(items, [{("", ""): 0}] * len(items), budget, start="", bins=bins)
    return None if chosen is None else [choice for choice, _ in chosen]


@dataclass(frozen=True, eq=False)
class _Extended:
    time: np.ndarray
    loss: np.ndarray
    before: list[tuple[State, int]]
    ways: list[Way]


def _extended(
    totals: Mapping[State, _Totals], ways: Sequence[Way], changes: Mapping[tuple[State, State], int], state: State
) -> "_Extended | None":
    """Every total so far with every way in this state; None where no state before can change to it."""
    times, losses, before = [], [], []
    own_times = np.asarray([way.time for way in ways], np.int64)
    own_losses = np.asarray([way.loss for way in ways], np.float64)
    for earlier, total in totals.items():
        if (change := changes.get((earlier, state))) is None:
            continue
        times.append((total.time[:, None] + own_times + change).ravel())
        losses.append((total.loss[:, None] + own_losses).ravel())
        before.append((earlier, len(total.time)))
    if not times:
        return None
    return _Extended(np.concatenate(times), np.concatenate(losses), before, list(ways))


def _kept(found: _Extended, *, width: int, bins: int) -> _Totals:
    kept = _thinned(_undominated(found.time, found.loss), found.time, width=width, bins=bins)
    first, before = 0, []
    starts = []
    for state, count in found.before:
        starts.append((first, state))
        first += count * len(found.ways)
    offsets = np.asarray([start for start, _ in starts])
    for place, segment in zip(kept, np.searchsorted(offsets, kept, side="right") - 1, strict=True):
        start, state = starts[int(segment)]
        total, way = divmod(int(place) - start, len(found.ways))
        before.append((state, total, found.ways[way]))
    return _Totals(found.time[kept], found.loss[kept], before)


def _traced_back(history: list[dict[State, _Totals]], last: Mapping[State, _Totals], budget: int) -> Chosen | None:
    """The least loss within the budget over the states at the end; of equals the faster one."""
    best: tuple[float, int, State, int] | None = None
    for state, totals in last.items():
        place = int(np.searchsorted(totals.time, budget, side="right")) - 1  # times ascend and losses descend
        if place < 0:
            continue
        found = float(totals.loss[place]), int(totals.time[place]), state, place
        if best is None or found[:2] < best[:2]:
            best = found
    if best is None:
        return None
    _, _, state, place = best
    chosen: Chosen = []
    for totals in reversed(history):
        before, earlier, way = totals[state].before[place]
        chosen.append((way.choice, way.state))
        state, place = before, earlier
    return chosen[::-1]


def _undominated(time: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Places that nothing beats in both, by ascending time and so descending loss; of equals the first."""
    order = np.lexsort((loss, time))
    least = np.minimum.accumulate(loss[order])
    improves = np.ones(len(order), dtype=bool)
    improves[1:] = least[1:] < least[:-1]
    return order[improves]


def _thinned(kept: np.ndarray, time: np.ndarray, *, width: int, bins: int) -> np.ndarray:
    """Of more than `bins` places, the last one (the least loss) of each interval of time, and the very fastest."""
    if len(kept) <= bins:
        return kept
    interval = time[kept] // width
    stays = np.append(interval[1:] != interval[:-1], True)
    stays[0] = True
    return kept[stays]


# The assignment with the least sum of errors within a latency.


def solve(table: ChoiceTable, budget_us: float, *, bins: int) -> Assignment | None:
    """The best assignment within a budget; None where even the fastest exceeds it. See `choose_along`.

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


Loss = Callable[[Assignment, int], float]
"""(assignment, number of batches) -> the loss of the network on held-out data."""

MOST_SWAPS = 3  # of one offspring
TRIES = 50  # to find swaps that keep the budget


@dataclass(frozen=True)
class Refined:
    """Args:
    assignment: the best one.
    loss_before, loss: of the first and the best one, on all batches; None where nothing was tried.
    tried: assignments that were evaluated.
    """

    assignment: Assignment
    loss_before: float | None = None
    loss: float | None = None
    tried: int = 0


def refine(
    table: ChoiceTable,
    start: Assignment,
    budget_us: float,
    loss: Loss,
    *,
    generations: int,
    offspring: int,
    batches: int,
    seed: int = 0,
) -> Refined:
    """Search beside an assignment; whatever is tried keeps the budget, and the layouts stay.

    In each generation the best one so far has offspring: up to MOST_SWAPS times an item takes another option, and others faster
    ones until the budget is kept; all of these are dense or what no other option of the item beats in time and error. The
    offspring are evaluated on one batch, the better half on two, and so on; the last ones and their parent on all. The best
    becomes the parent.

    Source: Sieberling et al., "EvoPress: Accurate Dynamic Model Compression via Evolutionary Search", 2025: errors of layers
        do not add up, so that the network's own loss must decide. Departure: a swap may change the pattern too, and the
        budget is a time.
    """
    drawn = random.Random(seed)
    first = best_loss = math.nan
    best, tried, known = start, 0, {start.options}
    choices = [item.undominated(start.layout_of(item)) for item in table.items]
    for _ in range(generations):
        children = []
        for _ in range(offspring):
            child = _mutated(table, best, budget_us, choices, drawn)
            if child is not None and child.options not in known:
                known.add(child.options)
                children.append(child)
        if not children:
            continue
        if math.isnan(first):
            first = best_loss = loss(best, batches)
        tried += len(children)
        on_batches = 1
        while len(children) > 1 and on_batches < batches:
            children = sorted(children, key=lambda child: loss(child, on_batches))[: math.ceil(len(children) / 2)]
            on_batches *= 2
        for child in children:
            if (found := loss(child, batches)) < best_loss:
                best, best_loss = child, found
    if math.isnan(first):
        return Refined(start)
    return Refined(best, first, best_loss, tried)


def within(table: ChoiceTable, assignment: Assignment, budget_us: float) -> Assignment | None:
    """An assignment whose prediction has become too slow, made faster where that adds the least error for each microsecond; None
    where no option is faster any more.
    """
    while table.time_us(assignment) > budget_us:
        steps = []
        for place, item in enumerate(table.items):
            layout, now = assignment.layout_of(item), item.options[assignment.options[place]]
            for number, option in enumerate(item.options):
                if (gained := now.times_us[layout] - option.times_us[layout]) > 0:
                    steps.append(((option.error - now.error) / gained, place, number))
        if not steps:
            return None
        _, place, number = min(steps)
        options = list(assignment.options)
        options[place] = number
        assignment = replace(assignment, options=tuple(options))
    return assignment


def _mutated(
    table: ChoiceTable, parent: Assignment, budget_us: float, choices: Sequence[Sequence[int]], drawn: random.Random
) -> Assignment | None:
    """A neighbor within the budget; None where none was found.

    Args:
        choices: per item the options that it may take.
    """
    options = list(parent.options)
    for _ in range(drawn.randint(1, MOST_SWAPS)):
        place = drawn.randrange(len(options))
        options[place] = drawn.choice(choices[place])
    for _ in range(TRIES):
        child = replace(parent, options=tuple(options))
        if table.time_us(child) <= budget_us:
            return None if child.options == parent.options else child
        place = drawn.randrange(len(options))
        layout, item = parent.layout_of(table.items[place]), table.items[place]
        now = item.options[options[place]].times_us[layout]
        faster = [number for number in choices[place] if item.options[number].times_us[layout] < now]
        if faster:
            # the one that costs least of those: a large step would leave time unused
            options[place] = min(faster, key=lambda number: item.options[number].error)
    return None
