"""No function profits from what ran before it: each follows each other one equally often, and none itself."""

from collections import Counter
from itertools import pairwise

import pytest

from sparsefront.measure.timers import balanced_orders


@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdef", "abcdefghi", "abcdefghij"])
def test_each_follows_each_other_one_equally_often(names: str):
    orders = balanced_orders(names)
    assert all(sorted(order) == sorted(names) for order in orders), "a round has every name once"
    stream = [name for order in (*orders, orders[0][:1]) for name in order]  # the first follows the last round again
    followed = Counter(pairwise(stream))
    assert len(followed) == len(names) * (len(names) - 1) and len(set(followed.values())) == 1
    assert all(one != other for one, other in followed)


def test_two_alternate_and_three_take_two_rounds():
    assert balanced_orders("ab") == [["a", "b"], ["a", "b"]]
    assert balanced_orders("abc") == [["a", "b", "c"], ["b", "a", "c"]]


def test_a_lone_function_is_called_again_and_again():
    assert balanced_orders("a") == [["a"]]
