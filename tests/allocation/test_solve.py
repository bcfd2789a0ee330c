"""The best assignment within a latency, against brute force and against a solver of integer programs."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.assignment import ROW_MAJOR, Assignment, ChoiceTable, Item, Option, least_us, solve

LAYOUTS = ("feature_major", ROW_MAJOR)
BINS = 10_000
times = st.integers(1, 40)
errors = st.integers(0, 30).map(lambda quarter: quarter / 4)


@st.composite
def tables(draw) -> ChoiceTable:
    """A layer, then a chain of two products, then another layer or none."""

    def item(name: str, chain: str | None) -> Item:
        layouts = LAYOUTS if chain else (ROW_MAJOR,)
        options = [
            Option(number or None, 0.5 if number else 0.0, draw(errors), {layout: draw(times) for layout in layouts})
            for number in range(draw(st.integers(1, 3)))
        ]
        return Item((name,), chain, options)

    items = [item("stem", None), item("q", "blocks"), item("fc", "blocks")]
    items += [item("last", None)] * draw(st.booleans())
    layouts = {"blocks": {"feature_major": draw(st.integers(-5, 9)), ROW_MAJOR: 0}}
    return ChoiceTable([], items, layouts, rest_us=draw(st.integers(0, 9)), dense_us=100.0)


def every(table: ChoiceTable) -> list[Assignment]:
    options = product(*(range(len(item.options)) for item in table.items))
    return [Assignment(chosen, {"blocks": layout}) for chosen in options for layout in LAYOUTS]


@settings(max_examples=150, derandomize=True)
@given(table=tables(), budget=st.integers(0, 150))
def test_solution_equals_brute_force(table, budget):
    within = [one for one in every(table) if table.time_us(one) <= budget]
    found = solve(table, budget, bins=BINS)
    assert least_us(table) == min(map(table.time_us, every(table)))
    if not within:
        assert found is None and least_us(table) > budget
        return
    assert table.time_us(found) <= budget
    assert table.error(found) == min(map(table.error, within))


def test_a_table_is_read_back():
    option = Option(1, 0.5, 0.25, {ROW_MAJOR: 2.0}, {ROW_MAJOR: "n_m_rebuilt"})
    table = ChoiceTable(["n_m"], [Item(("q", "k"), None, [Option(None, 0.0), option])], {}, 3.0, 9.0, 1.5)
    assert ChoiceTable.from_json(table.to_json()) == table
