"""One choice per item within a budget of time, at the least loss: a multiple-choice knapsack by dynamic programming."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
