"""Each pattern against an oracle of plain loops that knows the definition and none of the implementation.

Scores are small whole numbers, so that ties are everywhere; group scores are compared as exact fractions (the square of
l2/length), so that equal groups are equal.
"""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.patterns.base import Pattern
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise

Group = list[tuple[int, int]]  # the weights of one group


def score_of(importance: list[list[int]], group: Group) -> Fraction:
    return Fraction(sum(importance[i][j] ** 2 for i, j in group), len(group) ** 2)


def drop_lowest(importance: list[list[int]], groups: list[Group], allowed: int) -> set[tuple[int, int]]:
    """Groups in the order of their index go from the lowest score on, the later of equals first, while they fit."""
    order = sorted(range(len(groups)), key=lambda index: (score_of(importance, groups[index]), -index))
    gone: set[tuple[int, int]] = set()
    for index in order:
        if len(gone) + len(groups[index]) > allowed:
            break
        gone.update(groups[index])
    return gone


def allowed_of(total: int, sparsity: float) -> int:
    return math.floor(total * sparsity + 1e-6)


def blocks_of(rows: int, columns: int, height: int, width: int) -> list[Group]:
    return [
        [(i, j) for i in range(top, top + height) for j in range(left, left + width)]
        for top in range(0, rows, height)
        for left in range(0, columns, width)
    ]


def free_oracle(importance: list[list[int]], sparsity: float, height: int, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    return drop_lowest(importance, blocks_of(rows, columns, height, width), allowed_of(rows * columns, sparsity))


def balanced_oracle(importance: list[list[int]], n: int, m: int, height: int, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    groups = blocks_of(rows, columns, height, width)
    gone: set[tuple[int, int]] = set()
    for start in range(0, len(groups), m):  # a row of blocks holds a whole number of windows
        window = groups[start : start + m]
        best = sorted(range(m), key=lambda index: (-score_of(importance, window[index]), index))[:n]
        gone.update(weight for index in range(m) if index not in best for weight in window[index])
    return gone


def tile_wise_oracle(importance: list[list[int]], sparsity: float, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    outputs = [[(i, j) for j in range(columns)] for i in range(rows)]
    gone = drop_lowest(importance, outputs, allowed_of(rows * columns, 1 - math.sqrt(1 - sparsity)))
    survivors = [i for i in range(rows) if (i, 0) not in gone]
    groups = [
        [(i, j) for i in survivors[start : start + width]]
        for start in range(0, len(survivors), width)
        for j in range(columns)
    ]
    return gone | drop_lowest(importance, groups, allowed_of(rows * columns, sparsity) - len(gone))


def assert_prunes(pattern: Pattern, importance: list[list[int]], sparsity: float, gone: set[tuple[int, int]]) -> None:
    mask = pattern.mask(torch.tensor(importance, dtype=torch.float32), sparsity)
    assert set(map(tuple, (~mask).nonzero().tolist())) == gone
    pattern.check(mask, sparsity)


def matrices(rows: int, columns: int, largest: int = 4) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, largest), min_size=columns, max_size=columns), min_size=rows, max_size=rows)


fractions = st.floats(0, 0.99)
few = settings(max_examples=40, deadline=None, derandomize=True)


@few
@given(importance=st.integers(1, 6).flatmap(lambda rows: matrices(rows, 5)), sparsity=fractions)
def test_element_wise(importance, sparsity):
    assert_prunes(ElementWise(), importance, sparsity, free_oracle(importance, sparsity, 1, 1))


@few
@given(importance=matrices(3, 24), window=st.sampled_from([(2, 4), (1, 4), (3, 8), (5, 6), (1, 2), (5, 12), (7, 24)]))
def test_n_m(importance, window):
    n, m = window
    assert_prunes(NM(n=n, m=m), importance, 1 - n / m, balanced_oracle(importance, n, m, 1, 1))


@few
@given(importance=matrices(6, 8), granularity=st.sampled_from([1, 2, 3, 6]), sparsity=fractions)
def test_vector_wise_free(importance, granularity, sparsity):
    gone = free_oracle(importance, sparsity, granularity, 1)
    assert_prunes(VectorWise(granularity=granularity), importance, sparsity, gone)


@few
@given(
    importance=matrices(6, 8),
    granularity=st.sampled_from([1, 2, 3]),
    window=st.sampled_from([(2, 4), (1, 4), (3, 8)]),
)
def test_vector_wise_balanced(importance, granularity, window):
    n, m = window
    pattern = VectorWise(granularity=granularity, distribution="balanced", m=m)
    assert_prunes(pattern, importance, 1 - n / m, balanced_oracle(importance, n, m, granularity, 1))


@few
@given(importance=matrices(6, 8), sides=st.sampled_from([(2, 2), (3, 4), (1, 8), (6, 1)]), sparsity=fractions)
def test_block_wise_free(importance, sides, sparsity):
    gone = free_oracle(importance, sparsity, *sides)
    assert_prunes(BlockWise(granularity=f"{sides[0]}x{sides[1]}"), importance, sparsity, gone)


@few
@given(importance=matrices(4, 16), window=st.sampled_from([(2, 4), (1, 4), (3, 8)]))
def test_block_wise_balanced(importance, window):
    n, m = window
    pattern = BlockWise(granularity=2, distribution="balanced", m=m)
    assert_prunes(pattern, importance, 1 - n / m, balanced_oracle(importance, n, m, 2, 2))


@few
@given(
    importance=st.integers(1, 9).flatmap(lambda rows: matrices(rows, 6)),
    granularity=st.sampled_from([1, 2, 4, 16]),
    sparsity=fractions,
)
def test_tile_wise(importance, granularity, sparsity):
    gone = tile_wise_oracle(importance, sparsity, granularity)
    assert_prunes(TileWise(granularity=granularity), importance, sparsity, gone)


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.75, 0.9, 0.98])
def test_tile_wise_on_a_layer_with_many_tiles(sparsity):
    importance = torch.randint(0, 50, (37, 29), generator=torch.Generator().manual_seed(1)).tolist()
    assert_prunes(TileWise(granularity=4), importance, sparsity, tile_wise_oracle(importance, sparsity, 4))
