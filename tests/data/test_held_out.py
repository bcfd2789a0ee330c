"""The division of train."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparsefront.data.base import held_out


@given(st.lists(st.integers(0, 4), min_size=2, max_size=200), st.floats(0.01, 0.5))
def test_every_row_is_on_one_side(strata: list[int], fraction: float) -> None:
    stay, held = held_out(strata, fraction)
    assert sorted([*stay, *held]) == list(range(len(strata)))
    assert len(stay) and len(held)
    assert (np.diff(stay) > 0).all() and (np.diff(held) > 0).all()


def test_each_class_gives_its_share() -> None:
    labels = np.array([0] * 100 + [1] * 50 + [2] * 10)
    _, held = held_out(labels, 0.2)
    assert np.bincount(labels[held]).tolist() == [20, 10, 2]


def test_the_division_never_changes() -> None:
    """Results of different machines and versions are compared on the same rows: these must stay as they are."""
    assert held_out([0] * 20, 0.2)[1].tolist() == [0, 9, 13, 19]
    assert held_out([0, 1] * 10, 0.2)[1].tolist() == [10, 11, 16, 17]
