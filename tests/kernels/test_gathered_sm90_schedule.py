"""Which work tiles the blocks of the persistent kernel get: all of Y once, in equal shares."""

import random
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.blocked import sm90 as blocked
from sparsefront_kernels.gathered import sm90, sm90_schedule
from sparsefront_kernels.gathered.sm90_schedule import ALL, WIDTHS, schedule, schedule_tensors, tile_cycles
from sparsefront_kernels.gathered.sm90_sharing import shared_tables
from sparsefront_kernels.registry import entry

CPU = torch.device("cpu")
EQUAL, UNEVEN, LONG = (16,) * 32, tuple(range(40, 8, -2)), (64, *[20] * 10, 0, 0)


def covered_columns(found, lengths, m):
    """Per CTA tile the columns of its tiles, rising."""
    columns = {cta_tile: [] for cta_tile in range(len(lengths))}
    for cta_tile, first, count in found.tiles:
        assert count in WIDTHS
        columns[cta_tile] += range(first, min(first + count, m))
    return columns


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 80), min_size=1, max_size=40).map(lambda all: tuple(sorted(all, reverse=True))),
    m=st.integers(1, 700).map(lambda runs: 8 * runs),
    blocks=st.integers(1, 140),
    raster_swizzle=st.sampled_from([1, 3, 32, ALL]),
    quick=st.booleans(),
)
def test_every_column_is_computed_once(lengths, m, blocks, raster_swizzle, quick):
    found = schedule(lengths, m, blocks, raster_swizzle, quick=quick)
    for columns in covered_columns(found, lengths, m).values():
        assert sorted(columns) == list(range(m))
    assert len(found.begins) - 1 <= blocks and found.begins[0] == 0 and found.begins[-1] == len(found.tiles)
    assert all(first < last for first, last in pairwise(found.begins))


@pytest.mark.parametrize("lengths", [EQUAL, UNEVEN, LONG], ids=["equal", "uneven", "long"])
@pytest.mark.parametrize("m", [1024, 4096, 12288])
def test_no_block_works_much_longer(lengths, m):
    """Than an equal share of what uncut tiles would cost, by at most a tile."""
    found = schedule(lengths, m, 132)
    share = sum(tile_cycles(length, 256) for length in lengths) * m / 256 / 132
    assert found.cycles <= share + tile_cycles(max(lengths), 256)
    shares = [
        sum(tile_cycles(lengths[cta_tile], count) for cta_tile, _, count in found.tiles[first:last])
        for first, last in pairwise(found.begins)
    ]
    assert max(shares) == pytest.approx(found.cycles)


def uneven_network():
    """(outputs, inputs, k-blocks of each CTA tile) of 96 products of a network of BERT-large's shapes, no two alike."""
    generator = random.Random(0)
    for _ in range(24):
        for n, k in ((3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096)):
            kept = [min(1.0, max(0.0, generator.gauss(0.5, 0.15))) for _ in range(n // 128)]
            yield n, k, tuple(sorted((round(share * k / 64) for share in kept), reverse=True))


@pytest.mark.parametrize(("kernel", "m"), [("gathered", 9632), ("gathered", 1032), ("blocked", 9632)])
def test_new_length_waits_for_no_search(kernel, m, monkeypatch):
    """Hundreds of orders of a product are dealt out to find the best one."""
    deal, dealt = sm90_schedule._deal, []
    monkeypatch.setattr(sm90_schedule, "_deal", lambda *given: dealt.append(given) or deal(*given))
    sm90_schedule._searched.cache_clear()
    for n, k, lengths in uneven_network():
        if kernel == "gathered":
            launch = sm90.best_predicted(sm90.Sm90Problem(m, k, n, n // 128, sum(lengths), lengths), 132)
            if launch.shares:
                shared_tables(lengths, m, 132, launch.block_m, CPU)
            else:
                schedule_tensors(lengths, m, 132, launch.raster_swizzle, CPU, quick=True)
        else:
            problem = blocked.BlockedProblem(m, k, n, 64, n // 128, 2 * sum(lengths), lengths)
            clusters = partial(blocked.clusters_of, num_sms=132)
            blocked.work_tensors(lengths, m, blocked.candidates(problem, 132)[0], clusters, CPU, quick=True)
    assert 0 < len(dealt) < 11 * 96


def test_columns_beyond_a_word():
    """They shared a word with the width of their tile, which they would have changed."""
    most = 1 << 28
    assert sm90_schedule.columns_unsupported_reason(most) is None
    for make in (
        lambda: schedule_tensors((1,), most + 64, 1, ALL, CPU),
        lambda: blocked.cut_tensors((1,), most + 64, blocked.BlockedLaunch(1, cut=64), 2.0, False, 1, CPU),
    ):
        with pytest.raises(ValueError, match="at most 268435456 rows of X, not 268435520"):
            make()
    stored = FORMATS["gathered"].from_dense(torch.ones(128, 64), torch.ones(128, 64) > 0, tile=128)
    blocks = FORMATS["blocked"].from_dense(torch.ones(128, 64), torch.ones(128, 64) > 0, block=(64, 64))
    for name, weight in (("gathered_sm90", stored), ("blocked_sm90", blocks)):
        problem = Problem(m=most + 64, k=64, n=128, dtype=torch.float16, device=torch.device("cuda"))
        assert "268435456 rows" in entry(name).unsupported_reason(weight, problem)
