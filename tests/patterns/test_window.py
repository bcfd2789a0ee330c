"""Choosing and rejecting windows."""

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import check_window_sparsity, find_window
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.vector_wise import VectorWise


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


def test_the_choice_is_never_further_than_a_hundredth():
    for percent in range(0, 99):
        window = find_window(2**6 * 3**3 * 5**2 * 7, percent / 100, n=None, m=None)
        assert abs(window.sparsity - percent / 100) <= 0.01 + 1e-9


@pytest.mark.parametrize(
    ("n", "m", "sparsity", "key", "message"),
    [
        (None, 4, 0.6, "m", r"0\.5 \(2:4\) and 0\.75 \(1:4\)"),
        (None, 4, 0.9, "m", r"0\.75 \(1:4\)"),
        (None, None, 0.999, "m", r"0\.9844 \(1:64\)"),
        (2, 4, 0.75, "n", r"2:4 is sparsity 0\.5, not 0\.75; n: 1 \(or null\) agrees"),
        (2, 4, 0.6, "m", r"0\.5 \(2:4\)"),
    ],
)
def test_what_no_layer_can_express_is_rejected_with_the_nearest(n, m, sparsity, key, message):
    with pytest.raises(InvalidSetting, match=message) as caught:
        NM(n=n, m=m).check_sparsity(sparsity)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("n", "m", "sparsity"), [(2, 4, 0.5), (None, 32, 0.9), (3, 32, 0.9), (None, 3, 2 / 3), (1, 2, 0.5)]
)
def test_what_a_window_expresses_is_accepted(n, m, sparsity):
    check_window_sparsity(sparsity, n=n, m=m)


@pytest.mark.parametrize(
    ("n", "m", "key"), [(None, 1, "m"), (None, 65, "m"), (None, 0, "m"), (2, None, "n"), (5, 4, "n"), (0, 4, "n")]
)
def test_impossible_settings(n, m, key):
    with pytest.raises(InvalidSetting) as caught:
        NM(n=n, m=m)
    assert caught.value.key == key


def test_errors_name_length_and_window():
    assert NM(m=32).unsupported_reason((8, 100), 0.75) == "inputs 100 are not a multiple of m 32"
    assert "inputs 67" in NM().unsupported_reason((8, 67), 0.5)
    assert NM(m=4).unsupported_reason((8, 64), 0.75) is None
    balanced = VectorWise(granularity=4, distribution="balanced", m=8)
    assert balanced.unsupported_reason((8, 12), 0.5) == "inputs 12 are not a multiple of m 8"
    assert balanced.unsupported_reason((10, 16), 0.5) == "outputs 10 are not a multiple of granularity 4"
