"""Tiles that are cut into pieces: every k-block of every tile once, and about equal work for all clusters."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels.blocked.pieces import Costs, estimated_end, shares

COSTS = Costs(whole=1500, piece=1700, k_block=600, adding=(2500, 20))


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=40),
    columns=st.integers(1, 4),
    clusters=st.integers(1, 132),
)
def test_every_k_block_is_computed_once(lengths, columns, clusters):
    lengths = tuple(sorted(lengths, reverse=True))
    found = shares(lengths, columns, clusters, COSTS)
    assert len(found.clusters) <= clusters and all(found.clusters)
    ranges, numbers = defaultdict(list), defaultdict(list)
    for own in found.clusters:
        cost = sum(COSTS.whole if number < 0 else COSTS.piece for *_, number in own)
        assert (
            cost + sum(count for _, _, _, count, _ in own) * COSTS.k_block
            <= found.end - COSTS.of_adding(found.pieces) + 1e-6
        )
        empty = [count == 0 for _, _, _, count, _ in own]
        assert empty == sorted(empty), "a kernel's loads end at the first tile without k-blocks"
        for tile, column, begin, count, number in own:
            ranges[tile, column].append((begin, begin + count))
            if number >= 0:
                numbers[tile, column].append((begin, number))
    assert len(ranges) == columns * len(lengths)
    for (tile, _), own in ranges.items():
        ends = [0, *(end for _, end in sorted(own))]
        assert [begin for begin, _ in sorted(own)] == ends[:-1] and ends[-1] == lengths[tile]
    # pieces are numbered along the k-blocks, those of a tile one after the other
    assert {(tile, column) for tile, column, *_ in found.cut} == {*numbers}
    for tile, column, first, count in found.cut:
        assert [number for _, number in sorted(numbers[tile, column])] == [*range(first, first + count)]
    assert sorted(number for own in numbers.values() for _, number in own) == [*range(found.pieces)]


@pytest.mark.parametrize("lengths", [(64,) * 8, (318, 200, 90, 45, 6, 4, 2, 0), tuple(range(64, 0, -2))])
def test_no_cluster_has_much_more(lengths):
    found = shares(lengths, 1, 66, COSTS)
    pieces = sum(map(len, found.clusters))
    mean = (sum(lengths) * COSTS.k_block + pieces * COSTS.piece) / 66
    assert found.end <= mean + COSTS.piece + 2 * COSTS.k_block + COSTS.of_adding(found.pieces)
    assert estimated_end(lengths, 1, 66, COSTS) == pytest.approx(found.end, rel=0.3)
