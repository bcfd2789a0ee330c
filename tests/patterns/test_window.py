"""Choosing and rejecting windows."""

import pytest

from sparsefront.patterns.base import check_window_sparsity, find_window


@pytest.mark.parametrize(
    ("length", "sparsity", "expected"),
    [
        (1024, 0.5, (2, 4)),
        (1024, 0.75, (1, 4)),
        (1024, 0.9, (3, 32)),
        (768, 0.9, (3, 32)),
        (300, 0.9, (1, 10)),
        (1024, 0.0, (4, 4)),
        (1024, 0.875, (1, 8)),
        (10, 0.5, (5, 10)),
        (7, 0.5, None),
        (67, 0.5, None),
    ],
)
def test_the_smallest_m_that_divides_and_comes_close(length, sparsity, expected):
    assert find_window(length, sparsity, n=None, m=None) == expected


@pytest.mark.parametrize(
    ("n", "m", "sparsity"), [(2, 4, 0.5), (None, 32, 0.9), (3, 32, 0.9), (None, 3, 2 / 3), (1, 2, 0.5)]
)
def test_what_a_window_expresses_is_accepted(n, m, sparsity):
    check_window_sparsity(sparsity, n=n, m=m)
