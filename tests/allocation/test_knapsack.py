"""The search against every combination there is."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.assignment import Way, choose_along, choose_within

few = settings(max_examples=200, derandomize=True)
# Losses are quarters, so that sums are exact and ties really tie.
choice = st.tuples(st.integers(0, 20), st.integers(-4, 40).map(lambda quarter: quarter / 4))
items = st.lists(st.lists(choice, min_size=1, max_size=4), min_size=1, max_size=5)


def columns(items: list) -> tuple[list[list[int]], list[list[float]]]:
    return [[t for t, _ in item] for item in items], [[loss for _, loss in item] for item in items]


def totals(items: list, choices: list[int]) -> tuple[int, float]:
    chosen = [item[choice] for item, choice in zip(items, choices, strict=True)]
    return sum(t for t, _ in chosen), sum(loss for _, loss in chosen)


def least_loss(items: list, budget: int) -> float | None:
    """Over all combinations."""
    within = [
        sum(loss for _, loss in chosen) for chosen in product(*items) if sum(time for time, _ in chosen) <= budget
    ]
    return min(within, default=None)


@few
@given(items=items, budget=st.integers(0, 100))
def test_equals_brute_force(items, budget):
    choices = choose_within(*columns(items), budget, bins=10_000)
    expected = least_loss(items, budget)
    if expected is None:
        assert choices is None
        return
    time, loss = totals(items, choices)
    assert time <= budget and loss == expected


@few
@given(items=items, budget=st.integers(0, 100), bins=st.integers(1, 12))
def test_few_bins_keep_the_budget(items, budget, bins):
    choices = choose_within(*columns(items), budget, bins=bins)
    if least_loss(items, budget) is None:
        assert choices is None
        return
    time, loss = totals(items, choices)  # what can be met is always met
    assert time <= budget
    width = max(1, -(-sum(max(t for t, _ in item) for item in items) // bins))
    bound = least_loss(items, budget - width * len(items))
    assert bound is None or loss <= bound


STATES = ("rows", "columns")
way = st.tuples(st.sampled_from(STATES), st.integers(0, 20), st.integers(-4, 40).map(lambda quarter: quarter / 4))
pairs = st.tuples(st.sampled_from(STATES), st.sampled_from(STATES))
stations = st.lists(
    st.tuples(
        st.lists(way, min_size=1, max_size=4), st.dictionaries(pairs, st.integers(-3, 9), min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=4,
)


def along(chain: list) -> tuple[list, list]:
    ways = [[Way(number, *one) for number, one in enumerate(ways)] for ways, _ in chain]
    return ways, [changes for _, changes in chain]


def walked(chain: list, chosen: list[tuple[int, str]]) -> tuple[int, float] | None:
    """Time and loss of these choices, changes included; None where one of them cannot be."""
    time, loss, state = 0, 0.0, "rows"
    for (ways, changes), (number, after) in zip(chain, chosen, strict=True):
        if ways[number][0] != after or (state, after) not in changes:
            return None
        time, loss = time + ways[number][1] + changes[state, after], loss + ways[number][2]
        state = after
    return time, loss


@few
@given(chain=stations, budget=st.integers(-5, 80))
def test_chain_equals_brute_force(chain, budget):
    ways, changes = along(chain)
    every = product(*([(number, one[0]) for number, one in enumerate(ways)] for ways, _ in chain))
    totals = [found for chosen in every if (found := walked(chain, list(chosen))) is not None]
    within = [found for found in totals if found[0] <= budget]
    chosen = choose_along(ways, changes, budget, start="rows", bins=10_000)
    if not within:
        assert chosen is None
        return
    time, loss = walked(chain, chosen)
    assert time <= budget and loss == min(loss for _, loss in within)
