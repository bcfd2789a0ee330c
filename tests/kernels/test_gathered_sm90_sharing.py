"""Which blocks share the k-blocks of which tiles: every k-block of Y once, a tile's parts in the order of K."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS
from sparsefront_kernels.gathered.sm90 import SHARED, launch_gathered_sm90
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90
from sparsefront_kernels.gathered.sm90_sharing import likely_cycles, shared_schedule, shared_tables
from sparsefront_kernels.performance_model.launch_costs import shared_tile_cycles

CPU = torch.device("cpu")
PART, COLUMNS = -1 << 31, (1 << 28) - 1
LAUNCHES = pytest.mark.parametrize("launch", SHARED, ids=lambda launch: str(launch.block_m))


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
                shared_tile_cycles(count, 64 * ((place >> 28 & 3) + 1), widest)
                for _, _, count, place in work.work.tolist()[first:last]
            )
            for first, last in pairwise(work.first_tiles.tolist())
        ]
        assert max(ends) <= 1.25 * sum(ends) / len(ends) and len(ends) > 100


def test_what_is_likely_is_near_and_not_too_good():
    """Sharing is chosen by it: of short lists it may be too bad, which costs nothing."""
    generator = random.Random(0)
    for _ in range(60):
        length = generator.randint(4, 100)
        lengths = tuple(sorted(generator.randint(length // 2, length) for _ in range(generator.randint(4, 60))))[::-1]
        m, widest = generator.choice([256, 512, 1024]), generator.choice([128, 256])
        ratio = likely_cycles(lengths, m, 132, widest) / shared_schedule(lengths, m, 132, widest).cycles
        assert 0.9 < ratio < (1.35 if length > 20 else 6)
    assert likely_cycles((50,) * 100, 8192, 132, 256) == likely_cycles((0, 0), 256, 132, 256) == float("inf")


def test_whole_tiles_are_not_cut():
    found = shared_schedule((16,) * 66, 256, 132, 128)
    assert found.parts == 0 and len(found.shared) == 0 and len(found.work) == 132


def test_the_same_work_gives_the_same_tables():
    lengths = (40, 33, 20, 5, 0)
    first = shared_tables(lengths, 512, 132, 128, CPU)
    shared_schedule.cache_clear()
    shared_tables.cache_clear()
    again = shared_tables(lengths, 512, 132, 128, CPU)
    assert torch.equal(first.work, again.work) and torch.equal(first.shared, again.shared)
    assert torch.equal(first.begins, again.begins) and first.parts == again.parts


def test_columns_that_no_word_holds_are_named():
    with pytest.raises(ValueError, match="at most 268435456 rows of X"):
        shared_tables((1,), (1 << 28) + 64, 1, 128, CPU)


def uneven(n, k, tile, *, seed):
    """A weight whose tiles keep very different numbers of inputs, some none."""
    generator = torch.Generator("cuda").manual_seed(seed)
    tiles = -(-n // tile)
    shares = torch.rand(tiles, 1, device="cuda", generator=generator) ** 2
    shares[:: max(2, tiles // 3)] = 0
    mask = torch.rand(tiles, k, device="cuda", generator=generator) < shares
    weight = torch.randn(n, k, device="cuda", dtype=torch.float16, generator=generator)
    return FORMATS["gathered"].from_dense(weight, mask.repeat_interleave(tile, 0)[:n], tile=tile)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@LAUNCHES
class TestOnGPU:
    @pytest.mark.parametrize(
        ("m", "k", "n", "tile"),
        [(8, 300, 192, 64), (256, 4000, 640, 128), (344, 1999, 1111, 128), (1048, 700, 520, 32)],
    )
    def test_products(self, launch, m, k, n, tile, assert_close):
        stored = uneven(n, k, tile, seed=m)
        packed, bias = pack_for_sm90(stored), torch.randn(n, device="cuda")
        x, residual = (torch.randn(size, m, device="cuda", dtype=torch.float16) for size in (k, n))
        sums = stored.to_dense().double() @ x.double() + bias.double()[:, None]
        for activation, more in (("none", None), ("relu", residual)):
            y = torch.full((n, m), torch.nan, device="cuda", dtype=torch.float16)
            launch_gathered_sm90(x, y, packed, bias=bias, activation=activation, residual=more, launch=launch)
            assert_close(y, sums if more is None else sums.relu() + more.double())

    def test_rows(self, launch, assert_close):
        stored = uneven(1024, 2000, 128, seed=1)
        stored = FORMATS["gathered"].from_dense(stored.to_dense(), stored.to_dense() != 0, tile=128, fill=True)
        packed = pack_for_sm90(stored)
        assert packed.whole_runs
        x = torch.randn(2000, 256, device="cuda", dtype=torch.float16)
        y = torch.full((250, 1024), torch.nan, device="cuda", dtype=torch.float16)
        launch_gathered_sm90(x, y, packed, y_row_major=True, launch=launch)
        assert_close(y, (stored.to_dense().double() @ x.double()).t()[:250])

    def test_repeated_runs_give_the_same_bits(self, launch):
        packed = pack_for_sm90(uneven(1280, 5000, 128, seed=2))
        x = torch.randn(5000, 384, device="cuda", dtype=torch.float16)
        first, *others = (torch.full((1280, 384), torch.nan, device="cuda", dtype=torch.float16) for _ in range(12))
        for y in (first, *others):
            launch_gathered_sm90(x, y, packed, launch=launch)
        assert all(torch.equal(first, y) for y in others)
