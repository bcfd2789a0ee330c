"""An assignment improved by swaps: some layers give up weights so that others may keep more, evaluated by the network's loss."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparsefront.allocation.choice_table import Assignment, ChoiceTable

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
