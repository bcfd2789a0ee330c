"""The float32 kernels on CUDA cores, of wide and of narrow tiles: what packing saves, and which launches there are."""

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.bench.families import random_groups
from sparsefront_kernels.gathered.indexed import MOST_STEPS, pack_for_indexed
from sparsefront_kernels.gathered.simt import SimtProblem, candidates, pack_for_simt

LARGE = SimtProblem(m=4096, k=4096, n=4096, width=32, tiles=128, kept=128 * 2048)
SMALL = SimtProblem(m=256, k=1024, n=1024, width=32, tiles=32, kept=32 * 512)


def balanced(n, k, kept, m, tile):
    mask = random_groups(n // tile, k, kept, m, torch.device("cpu")).repeat_interleave(tile, 0)
    return FORMATS["gathered"].from_dense(torch.randn(n, k), mask, tile=tile, drop_empty_outputs=False)


@pytest.mark.parametrize("kept", [16, 12, 4])
@pytest.mark.parametrize("tile", [8, 16])
def test_balanced_vectors_waste_no_step(tile, kept):
    """n of every 32: a window of 64 holds 2n of every list."""
    packed = pack_for_indexed(balanced(256, 320, kept, 32, tile))
    assert len(packed.panels) == 2 * (320 // 64) * 2 * kept and packed.most_steps == 2 * kept
    rows = packed.starts[:, 0].diff()
    assert (rows <= 64).all() and (rows >= 2 * kept).all(), "only rows that some list keeps"


def test_dense_windows_are_two_stages():
    packed = pack_for_indexed(balanced(128, 64, 1, 1, 8))
    assert packed.starts.tolist() == [[0, 0], [32, 32], [64, 64]] and packed.most_steps == MOST_STEPS


def test_width_follows_the_tile():
    for tile, width in ((8, 32), (32, 32), (64, 64), (96, 32), (128, 128), (192, 64), (256, 128)):
        stored = FORMATS["gathered"].from_dense(torch.randn(300, 9), torch.ones(300, 9, dtype=torch.bool), tile=tile)
        assert pack_for_simt(stored).width == width


def test_small_products_are_split():
    best = candidates(SMALL, 132)[0]
    assert best.splits * best.warp_split_k > 1
    assert candidates(LARGE, 132)[0].splits == 1
