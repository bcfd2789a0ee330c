"""Swaps beside an assignment: the budget holds for whatever is evaluated, and the network's loss decides."""

from dataclasses import replace

import pytest

from sparsefront.allocation.assignment import ROW_MAJOR, Assignment, ChoiceTable, Item, Option, refine

TIMES = (10.0, 6.0, 3.0)  # dense, and two levels
BUDGET = 34.0


def table(items: int = 5) -> ChoiceTable:
    options = [Option(None if not n else 0, n / 3, n / 4, {ROW_MAJOR: time}) for n, time in enumerate(TIMES)]
    return ChoiceTable(["n_m"], [Item((str(n),), None, options) for n in range(items)], {}, 0.0, 50.0)


class KnownLoss:
    """A loss that no sum of errors tells: the first and the last layer must not both be pruned."""

    def __init__(self, known: ChoiceTable):
        self.table, self.evaluated = known, []

    def __call__(self, assignment: Assignment, batches: int) -> float:
        self.evaluated.append((assignment, batches))
        options = assignment.options
        return self.table.error(assignment) + 5.0 * bool(options[0] and options[-1])


def search(loss: KnownLoss, start: tuple[int, ...], generations: int = 40):
    known = loss.table
    return refine(known, Assignment(start), BUDGET, loss, generations=generations, offspring=6, batches=4)


def test_loss_beyond_sums_of_errors():
    known = table()
    loss = KnownLoss(known)
    start = (1, 1, 0, 1, 1)
    found = search(loss, start)
    assert found.loss_before == 6.0 and found.loss < 2.0
    assert not (found.assignment.options[0] and found.assignment.options[-1])
    assert found.loss == loss(found.assignment, 4)
    assert all(known.time_us(one) <= BUDGET for one, _ in loss.evaluated)
    assert {batches for _, batches in loss.evaluated} <= {1, 2, 4}


def test_dominated_options_are_never_tried():
    """Slower and less accurate than the first level, slower than dense, a copy of the second level that costs more error."""
    beaten = [
        Option(1, 1 / 3, 0.3, {ROW_MAJOR: 7.0}),
        Option(1, 0.4, 0.1, {ROW_MAJOR: 11.0}),
        Option(1, 2 / 3, 0.6, {ROW_MAJOR: 3.0}),
    ]
    known = table()
    items = [replace(item, options=[*item.options, *beaten]) for item in known.items]
    assert all(item.find_front(ROW_MAJOR) == [0, 1, 2] for item in items)
    loss = KnownLoss(replace(known, items=items))
    search(loss, (1, 1, 0, 1, 1))
    tried = {option for assignment, _ in loss.evaluated for option in assignment.options}
    assert tried == {0, 1, 2}


@pytest.mark.parametrize("generations", [0, 1])
def test_never_worse_than_the_start(generations):
    start = (0, 1, 2, 1, 0)
    found = search(KnownLoss(table()), start, generations)
    if generations == 0:
        assert found.assignment.options == start and found.loss is None and found.tried == 0
    else:
        assert found.loss <= found.loss_before


def test_nothing_else_fits():
    known = table(1)
    loss = KnownLoss(known)
    found = refine(known, Assignment((2,)), 3.0, loss, generations=5, offspring=3, batches=2)
    assert found.assignment.options == (2,) and found.loss is None and not loss.evaluated
