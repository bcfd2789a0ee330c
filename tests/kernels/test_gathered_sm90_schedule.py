"""Which work tiles the blocks of the persistent kernel get: all of Y once, in equal shares."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels.gathered.sm90_schedule import ALL, WIDTHS, schedule, schedule_tensors
from sparsefront_kernels.performance_model.launch_costs import cuda_tile_cycles

EQUAL, UNEVEN, LONG = (16,) * 32, tuple(range(40, 8, -2)), (64, *[20] * 10, 0, 0)


def covered_columns(found, lengths, m):
    """Per CTA tile the columns of its tiles, rising."""
    columns = {cta_tile: [] for cta_tile in range(len(lengths))}
    for cta_tile, first, count in found.tiles:
        assert count in WIDTHS
        columns[cta_tile] += range(first, min(first + count, m))
    return columns


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 80), min_size=1, max_size=40).map(lambda all: tuple(sorted(all, reverse=True))),
    m=st.integers(1, 700).map(lambda runs: 8 * runs),
    blocks=st.integers(1, 140),
    raster_swizzle=st.sampled_from([1, 3, 32, ALL]),
)
def test_every_column_of_every_pair_is_computed_once(lengths, m, blocks, raster_swizzle):
    found = schedule(lengths, m, blocks, raster_swizzle)
    for columns in covered_columns(found, lengths, m).values():
        assert sorted(columns) == list(range(m))
    assert len(found.begins) - 1 <= blocks and found.begins[0] == 0 and found.begins[-1] == len(found.tiles)
    assert all(first < last for first, last in pairwise(found.begins))


@pytest.mark.parametrize("lengths", [EQUAL, UNEVEN, LONG], ids=["equal", "uneven", "long"])
@pytest.mark.parametrize("m", [1024, 4096, 12288])
def test_no_block_works_much_longer_than_the_others(lengths, m):
    """Than an equal share of what uncut tiles would cost, by at most a tile."""
    found = schedule(lengths, m, 132)
    share = sum(cuda_tile_cycles(length, 256) for length in lengths) * m / 256 / 132
    assert found.cycles <= share + cuda_tile_cycles(max(lengths), 256)
    shares = [
        sum(cuda_tile_cycles(lengths[cta_tile], count) for cta_tile, _, count in found.tiles[first:last])
        for first, last in pairwise(found.begins)
    ]
    assert max(shares) == pytest.approx(found.cycles)


def test_the_last_round_is_filled_with_narrower_tiles():
    """Ten CTA tiles of 4096 columns are 160 tiles of 256: two rounds of 132 blocks, the second nearly empty."""
    found = schedule((20,) * 10, 4096, 132)
    assert found.cycles < 0.8 * 2 * cuda_tile_cycles(20, 256)
    assert {count for _, _, count in found.tiles} > {256}


def test_a_group_goes_through_all_columns_before_the_next_begins():
    """One block gets all tiles, in their order."""
    found = schedule((8,) * 5, 1024, 1, 2)
    whole = [cta_tile for cta_tile, _, count in found.tiles if count == 256]
    assert len(whole) == 5 * 4 and whole == [0, 1] * 4 + [2, 3] * 4 + [4] * 4
    assert [cta_tile for cta_tile, *_ in schedule((8,) * 5, 1024, 1).tiles] == [*range(5)] * 4


def test_much_longer_pairs_come_first():
    found = schedule(LONG, 4096, 132)
    for first, last in pairwise(found.begins):
        assert [cta_tile for cta_tile, _, _ in found.tiles[first:last]].count(0) == 0 or found.tiles[first][0] == 0


def test_tables_say_where_the_steps_of_a_pair_lie():
    work, begins = schedule_tensors((3, 2, 0), 320, 132, ALL, torch.device("cpu"))
    found = schedule((3, 2, 0), 320, 132)
    assert begins.tolist() == list(found.begins)
    for (cta_tile, column, count), (its_pair, first, k_blocks, place) in zip(found.tiles, work.tolist(), strict=True):
        assert (its_pair, first, k_blocks) == (cta_tile, (0, 3, 5)[cta_tile], (3, 2, 0)[cta_tile])
        assert place & 0xFFFFFFF == column and 64 * (((place >> 28) & 0xF) + 1) == count
