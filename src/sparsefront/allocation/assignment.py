"""Assign a pattern and sparsity to each layer within a latency budget: a knapsack solver and an evolutionary refinement."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

# Measured times as integers, so that sums have no rounding error.

PER_MICROSECOND = 10**6


def at_most(latency_us: float) -> int:
    """Round up to whole picoseconds, so that a measured time is never understated."""
    return math.ceil(_picoseconds(latency_us))


def at_least(latency_us: float) -> int:
    """Round down to whole picoseconds, so that a budget or a saving is never overstated."""
    return math.floor(_picoseconds(latency_us))


def _picoseconds(latency_us: float) -> float:
    # Removes float error in products of decimal numbers; far below timer resolution.
    return round(latency_us * PER_MICROSECOND, 3)


# The options of a latency search: patterns and sparsities for each product of a network, with times and errors.

ROW_MAJOR = "row_major"  # layout of activations at the network's ends and in every layer outside of blocks


@dataclass(frozen=True)
class Option:
    """A pattern at a sparsity, or dense.

    Args:
        pattern: index of the candidate; None = dense.
        sparsity: of every layer of the item; 0 = dense.
        error: on calibration inputs, summed over the item's layers and weighted by their effect on the loss; see
            `latency_search.evaluating`.
        times_us: layout of the activations -> microseconds of the fastest kernel.
        kernels: layout -> name of that kernel.
    """

    pattern: int | None
    sparsity: float
    error: float = 0.0
    times_us: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """Layers that run as one product, such as query, key and value, and therefore share one pattern and sparsity.

    Args:
        layers: names in the network.
        chain: the chain of blocks, rewritten in one layout, that it belongs to; None outside of blocks.
        options: the first one is dense.
    """

    layers: tuple[str, ...]
    chain: str | None
    options: Sequence[Option]

    def find_front(self, layout: str) -> list[int]:
        """Indices of dense and of all options on the Pareto front of time and error."""
        costs = [(option.times_us[layout], option.error) for option in self.options]
        return [
            number
            for number, (time_us, error) in enumerate(costs)
            if number == 0 or not any(us <= time_us and e <= error and (us, e) != (time_us, error) for us, e in costs)
        ]


@dataclass(frozen=True)
class ChoiceTable:
    """A network's items in call order.

    Args:
        patterns: labels of the candidates.
        layouts_us: chain -> layout -> microseconds that this layout adds outside of products: layout changes at the ends of
            the chain, and its norms. 0 for one of the layouts.
        rest_us: microseconds of the network outside of products and `layouts_us`.
        dense_us: of the dense network in its fastest version.
        seconds: time taken to measure this table.
        dense_versions: the versions of the dense network that are timed; see `measure.fastest.Execution.versions`.
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
        """Sum of the errors of an assignment."""
        return sum(item.options[option].error for item, option in zip(self.items, assignment.options, strict=True))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ChoiceTable":
        """Inverse of `to_json`."""
        items = [
            Item(tuple(item["layers"]), item["chain"], [Option(**option) for option in item["options"]])
            for item in content["items"]
        ]
        return cls(**{**content, "items": items})


@dataclass(frozen=True)
class Assignment:
    """A choice for every item of the network.

    Args:
        options: index of the option of each item.
        layouts: chain -> layout.
    """

    options: tuple[int, ...]
    layouts: Mapping[str, str] = field(default_factory=dict)

    def layout_of(self, item: Item) -> str:
        """Layout of the activations in an item."""
        return ROW_MAJOR if item.chain is None else self.layouts[item.chain]


# Minimal loss within a time budget: a multiple-choice knapsack by dynamic programming.

State = str
Chosen = list[tuple[int, State]]


@dataclass(frozen=True)
class Way:
    """One way to run an item.

    Args:
        choice: index of the choice in the item.
        state: activation layout of the item; changing the state takes time.
        time: an integer.
        loss: finite.
    """

    choice: int
    state: State
    time: int
    loss: float


@dataclass(frozen=True, eq=False)
class _Totals:
    """Pareto-optimal totals so far that end in one state, by ascending time and so descending loss, with backpointers: previous
    state, index among its totals, and way.
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
    """Choose a way for each item of a chain, with minimal total loss and total time, state changes included, within the budget.

    Item by item, the Pareto-optimal totals of time and loss are kept per state. Times are integers and add up exactly, so the
    budget is never exceeded. The result is optimal while at most `bins` totals are alive in a state. Beyond that, only the one
    with the least loss in each of `bins` equal time intervals (and the fastest of all) is kept; the result then loses no more
    than the optimum for a budget smaller by one interval per item. The kept totals do not depend on the budget, so a smaller
    budget never loses less.

    Args:
        items: the ways of each item; ties in time and loss go to the first.
        changes: per item, (previous state, state) -> time; missing pairs are not allowed. The initial state is `start`.
        budget: in the unit of times.
        bins: number of totals to keep, at least 1.
    Returns:
        (choice, state) of each item, or None if even the fastest ones exceed the budget.
    Source: Frantar and Alistarh, "SPDY: Accurate Pruning with Speedup Guarantees", 2022, and Shen et al., "Structural
        Pruning via Latency-Saliency Knapsack" (HALP), 2022, use dynamic programming over discretized time. Departures: they
        round every time to the grid; here the grid only limits how many exact totals are kept. They have no states.
    """
    longest = sum(max((way.time for way in ways), default=0) for ways in items)
    longest += sum(max(times.values(), default=0) for times in changes)
    width = max(1, -(-longest // bins))
    totals = {start: _Totals(np.zeros(1, np.int64), np.zeros(1), [])}
    history = []
    for ways, times in zip(items, changes, strict=True):
        totals = {
            state: _keep_best(extended, width=width, bins=bins)
            for state in dict.fromkeys(way.state for way in ways)
            if (extended := _extend(totals, [way for way in ways if way.state == state], times, state)) is not None
        }
        history.append(totals)
    return _trace_back(history, totals, budget)


def choose_within(
    times: Sequence[Sequence[int]], losses: Sequence[Sequence[float]], budget: int, *, bins: int
) -> list[int] | None:
    """`choose_along` with a single state.

    Args:
        times: per item and choice, at least 0.
        losses: same structure; finite.
    Returns:
        index of the choice of each item, or None if even the fastest choices exceed the budget.
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


def _extend(
    totals: Mapping[State, _Totals], ways: Sequence[Way], changes: Mapping[tuple[State, State], int], state: State
) -> "_Extended | None":
    """Combine every total so far with every way in this state; None if no previous state can change to it."""
    times, losses, before = [], [], []
    own_times = np.asarray([way.time for way in ways], np.int64)
    own_losses = np.asarray([way.loss for way in ways], np.float64)
    for earlier, total in totals.items():
        change = changes.get((earlier, state))
        if change is None:
            continue
        times.append((total.time[:, None] + own_times + change).ravel())
        losses.append((total.loss[:, None] + own_losses).ravel())
        before.append((earlier, len(total.time)))
    if not times:
        return None
    return _Extended(np.concatenate(times), np.concatenate(losses), before, list(ways))


def _keep_best(found: _Extended, *, width: int, bins: int) -> _Totals:
    places = _thin(_find_front(found.time, found.loss), found.time, width=width, bins=bins)
    first, before = 0, []
    starts = []
    for state, count in found.before:
        starts.append((first, state))
        first += count * len(found.ways)
    offsets = np.asarray([start for start, _ in starts])
    for place, segment in zip(places, np.searchsorted(offsets, places, side="right") - 1, strict=True):
        start, state = starts[int(segment)]
        total, way = divmod(int(place) - start, len(found.ways))
        before.append((state, total, found.ways[way]))
    return _Totals(found.time[places], found.loss[places], before)


def _trace_back(history: list[dict[State, _Totals]], last: Mapping[State, _Totals], budget: int) -> Chosen | None:
    """Backtrack the choices with the least loss within the budget over all final states; ties go to the faster one."""
    best: tuple[float, int, State, int] | None = None
    for state, totals in last.items():
        place = int(np.searchsorted(totals.time, budget, side="right")) - 1  # times ascend, losses descend
        if place < 0:
            continue
        candidate = float(totals.loss[place]), int(totals.time[place]), state, place
        if best is None or candidate[:2] < best[:2]:
            best = candidate
    if best is None:
        return None
    _, _, state, place = best
    chosen: Chosen = []
    for totals in reversed(history):
        before, earlier, way = totals[state].before[place]
        chosen.append((way.choice, way.state))
        state, place = before, earlier
    return chosen[::-1]


def _find_front(time: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Indices of the Pareto front by ascending time and so descending loss; ties go to the first."""
    order = np.lexsort((loss, time))
    least = np.minimum.accumulate(loss[order])
    improves = np.ones(len(order), dtype=bool)
    improves[1:] = least[1:] < least[:-1]
    return order[improves]


def _thin(kept: np.ndarray, time: np.ndarray, *, width: int, bins: int) -> np.ndarray:
    """Of more than `bins` indices, keep the last (least loss) of each time interval, and the fastest."""
    if len(kept) <= bins:
        return kept
    interval = time[kept] // width
    stays = np.append(interval[1:] != interval[:-1], True)
    stays[0] = True
    return kept[stays]


def solve(table: ChoiceTable, budget_us: float, *, bins: int) -> Assignment | None:
    """The best assignment within a budget; None if even the fastest exceeds it. See `choose_along`.

    All blocks of a chain share one layout, which is chosen together with the patterns.
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
    """All layers dense."""
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
    """Per item, the time of a layout change before it; a chain's layout is chosen at its first item and fixed from there."""
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
"""(assignment, number of batches) -> loss of the network on held-out data."""

MOST_SWAPS = 3  # per offspring
TRIES = 50  # attempts to find swaps within the budget


@dataclass(frozen=True)
class Refined:
    """Args:
    assignment: the best one.
    loss_before, loss: of the initial and the best one, on all batches; None if nothing was evaluated.
    tried: number of evaluated assignments.
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
) -> Refined:
    """Refine an assignment by evolutionary search, within the budget and without changing layouts.

    Each generation mutates the best assignment: up to MOST_SWAPS items take another option, and others take faster ones until
    the budget is met; only dense and Pareto-optimal options are used. Offspring are evaluated on one batch, the better half on
    two, and so on; the last ones and their parent on all. The best becomes the parent.

    Source: Sieberling et al., "EvoPress: Accurate Dynamic Model Compression via Evolutionary Search", 2025: layer errors
        do not add up, so the network's own loss must decide. Departure: a swap may also change the pattern, and the budget
        is a time.
    """
    drawn = random.Random(0)
    first = best_loss = math.nan
    best, tried, known = start, 0, {start.options}
    choices = [item.find_front(start.layout_of(item)) for item in table.items]
    for _ in range(generations):
        children = []
        for _ in range(offspring):
            child = _mutate(table, best, budget_us, choices, drawn)
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
            child_loss = loss(child, batches)
            if child_loss < best_loss:
                best, best_loss = child, child_loss
    if math.isnan(first):
        return Refined(start)
    return Refined(best, first, best_loss, tried)


def within(table: ChoiceTable, assignment: Assignment, budget_us: float) -> Assignment | None:
    """Make an assignment meet the budget, by the changes with the least additional error per saved microsecond; None if no
    faster options are left.
    """
    while table.time_us(assignment) > budget_us:
        steps = []
        for place, item in enumerate(table.items):
            layout, now = assignment.layout_of(item), item.options[assignment.options[place]]
            for number, option in enumerate(item.options):
                gained = now.times_us[layout] - option.times_us[layout]
                if gained > 0:
                    steps.append(((option.error - now.error) / gained, place, number))
        if not steps:
            return None
        _, place, number = min(steps)
        options = list(assignment.options)
        options[place] = number
        assignment = replace(assignment, options=tuple(options))
    return assignment


def _mutate(
    table: ChoiceTable, parent: Assignment, budget_us: float, choices: Sequence[Sequence[int]], drawn: random.Random
) -> Assignment | None:
    """A random neighbor within the budget; None if none was found.

    Args:
        choices: the allowed options of each item.
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
            # the one with the least error: a larger step would leave budget unused
            options[place] = min(faster, key=lambda number: item.options[number].error)
    return None
