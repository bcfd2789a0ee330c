"""One choice per item within a budget of time, at the least loss: a multiple-choice knapsack by dynamic programming."""

from collections.abc import Sequence

import numpy as np


def choose_within(
    times: Sequence[Sequence[int]], losses: Sequence[Sequence[float]], budget: int, *, bins: int
) -> list[int] | None:
    """The choices with the least total loss whose total time is within the budget.

    Item after item, the best totals so far are kept: those that no other beats in both time and loss. Times are whole
    numbers and add up exactly, so the budget is never exceeded. While at most `bins` totals are alive, the result is the
    best there is. Beyond that, only the one with the least loss is kept in each of `bins` equal intervals of time (and
    the fastest of all); the result then loses no more than the best for a budget that is smaller by one interval per
    item. What is kept does not depend on the budget, so a smaller budget never loses less.

    Args:
        times: per item, per choice, at least 0.
        losses: the same layout; finite. Of equal time and loss, the choices that come first win.
        budget: in the unit of times.
        bins: totals to keep, at least 1.
    Returns:
        per item the index of its choice, or None where even the fastest choices exceed the budget.
    Source: Frantar and Alistarh, "SPDY: Accurate Pruning with Speedup Guarantees", 2022, and Shen et al., "Structural
        Pruning via Latency-Saliency Knapsack" (HALP), 2022, solve this by dynamic programming over discretized time.
        Departure: they round every time to the grid; here the grid only limits how many exact totals are kept.
    """
    width = max(1, -(-sum(max(choices) for choices in times) // bins))
    total_time, total_loss = np.zeros(1, np.int64), np.zeros(1)
    survivors = []  # per item: which (earlier total, choice) pairs the kept totals are, as one index
    for item_times, item_losses in zip(times, losses, strict=True):
        time = (total_time[:, None] + np.asarray(item_times, np.int64)).ravel()
        loss = (total_loss[:, None] + np.asarray(item_losses, np.float64)).ravel()
        kept = _thinned(_undominated(time, loss), time, width=width, bins=bins)
        total_time, total_loss = time[kept], loss[kept]
        survivors.append(kept)
    place = int(np.searchsorted(total_time, budget, side="right")) - 1  # times ascend and losses descend
    if place < 0:
        return None
    choices = []
    for kept, item_times in zip(reversed(survivors), reversed(times), strict=True):
        place, choice = divmod(int(kept[place]), len(item_times))
        choices.append(choice)
    return choices[::-1]


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
