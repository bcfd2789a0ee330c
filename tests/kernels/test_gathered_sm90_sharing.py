"""Which blocks share the k-blocks of which tiles: every k-block of Y once, a tile's parts in the order of K."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels.gathered.sm90_sharing import shared_schedule, tile_cycles

PART, COLUMNS = -1 << 31, (1 << 28) - 1


def covered(found, lengths, m):
    """int [CTA tiles, most k-blocks + 1, M / 8]: how often each is computed; the last k-block stands for storing Y."""
    times = torch.zeros(len(lengths), max(lengths) + 1, m // 8, dtype=torch.int32)
    begins = [sum(max(1, length) for length in lengths[:at]) for at in range(len(lengths))]
    parts = {}
    for number, first, count, place in found.work.tolist():
        if place < 0:
            parts[number] = (first, count, place - PART)
            continue
        column, width = place & COLUMNS, 64 * ((place >> 28) + 1)
        assert (first, count) == (begins[number], lengths[number])
        columns = slice(column // 8, (column + width) // 8)
        times[number, :count, columns] += 1
        times[number, -1, columns] += 1
    for cta_tile, first_part, count, place in found.shared.tolist():
        column, width = place & COLUMNS, 64 * ((place >> 28) + 1)
        columns, k_block = slice(column // 8, (column + width) // 8), 0
        for number in range(first_part, first_part + count):
            first, its_count, its_place = parts.pop(number)
            assert (first, its_place) == (begins[cta_tile] + k_block, place) and its_count > 0, "in the order of K"
            times[cta_tile, k_block : k_block + its_count, columns] += 1
            k_block += its_count
        assert k_block == lengths[cta_tile] and count > 1
        times[cta_tile, -1, columns] += 1
    assert not parts, "every part is added up"
    return times


@settings(max_examples=60)
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 90)), min_size=1, max_size=30).map(
        lambda all: tuple(sorted(all, reverse=True))
    ),
    m=st.integers(1, 150).map(lambda runs: 8 * runs),
    blocks=st.integers(1, 140),
    widest=st.sampled_from([128, 256]),
)
def test_every_k_block_is_computed_once(lengths, m, blocks, widest):
    found = shared_schedule(lengths, m, blocks, widest)
    times = covered(found, lengths, m)
    for cta_tile, length in enumerate(lengths):
        assert (times[cta_tile, :length] == 1).all() and (times[cta_tile, length:-1] == 0).all()
    assert (times[:, -1] == 1).all()
    begins = found.first_tiles.tolist()
    assert begins[0] == 0 and begins[-1] == len(found.work) and len(begins) - 1 <= blocks
    assert all(first < last for first, last in pairwise(begins))
    assert found.parts == int((found.work[:, 3] < 0).sum())


@pytest.mark.parametrize(
    ("lengths", "m"),
    [((120, 118, 103, 102, 90, 80, 50, 40, *[30] * 5, 0, 0), 256), ((50,) * 23, 256), ((99, *[60] * 40, 3, 0), 1024)],
)
def test_blocks_get_equal_shares(lengths, m):
    """Whole tiles would keep few blocks busy, or some for much longer than others."""
    for widest in (128, 256):
        work = shared_schedule(lengths, m, 132, widest)
        ends = [
            sum(
                tile_cycles(count, 64 * ((place >> 28 & 3) + 1), widest)
                for _, _, count, place in work.work.tolist()[first:last]
            )
            for first, last in pairwise(work.first_tiles.tolist())
        ]
        assert max(ends) <= 1.25 * sum(ends) / len(ends) and len(ends) > 100
