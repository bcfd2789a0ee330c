"""The weight laid out for the Hopper kernel: multiplied as the kernel does, it is the same weight."""

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90


def stored_weight(n, k, tile, density, seed, *, dropped=0.0):
    """A gathered weight whose tiles keep uneven numbers of inputs; a share `dropped` of the outputs keeps none."""
    generator = torch.Generator().manual_seed(seed)
    survivors = (torch.rand(n, generator=generator) >= dropped).nonzero().flatten()
    tiles = -(-len(survivors) // tile)
    share = 2 * density * torch.rand(tiles, 1, generator=generator)
    mask = torch.zeros(n, k, dtype=torch.bool)
    mask[survivors] = (torch.rand(tiles, k, generator=generator) < share).repeat_interleave(tile, 0)[: len(survivors)]
    weight = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return FORMATS["gathered"].from_dense(weight, mask, tile=tile, drop_empty_outputs=dropped > 0)


def test_shared_input_is_loaded_once():
    mask = torch.zeros(128, 96, dtype=torch.bool)
    mask[:64, :48] = mask[64:, 32:80] = True  # 32 for half 0 alone, 16 for both, 32 for half 1 alone
    stored = FORMATS["gathered"].from_dense(torch.randn(128, 96), mask, tile=64)
    packed = pack_for_sm90(stored)
    assert (packed.k_blocks[:, :64] >= 0).sum() == 80
    assert len(packed.panels) == (48 + 48) // 16
    assert [bin(uses).count("1") for uses in packed.k_blocks[:, 64].tolist()] == [5, 1]


@pytest.mark.parametrize("tile", [16, 32, 64])
def test_tiles_that_share_inputs(tile):
    lists = torch.rand(2, 96).argsort(dim=1) < 16  # 16 inputs each
    mask = lists.repeat(128 // tile, 1).repeat_interleave(tile, 0)  # neighbors differ
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(256, 96), mask, tile=tile))
    assert len(packed.cta_tiles) == 2 and len(packed.k_blocks) == 2
    assert (packed.k_blocks[:, :64] >= 0).sum() == 32  # each of the two lists once
    assert len(packed.panels) == 4


def test_longest_pairs_come_first():
    packed = pack_for_sm90(stored_weight(640, 300, 128, 0.4, seed=3))
    lengths = packed.cta_tiles[:, 1].tolist()
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 1 and packed.k_blocks_of_each == 0


def test_pairs_that_differ_by_one_step():
    mask = torch.zeros(384, 256, dtype=torch.bool)
    mask[:128, :60] = mask[128:256, :100] = mask[256:, :128] = True  # 1, 2 and 2 k-blocks
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(384, 256), mask, tile=128))
    each, longer = packed.k_blocks_of_each, len(packed.k_blocks) - packed.k_blocks_of_each * len(packed.cta_tiles)
    assert (each, longer) == (1, 2)
    assert packed.cta_tiles.tolist() == [[i * each + min(i, longer), each + (i < longer)] for i in range(3)]


@pytest.mark.parametrize("tile", [24, 96, 200])
def test_tiles_that_misfit_half_tiles(tile):
    stored = FORMATS["gathered"].from_dense(torch.randn(200, 8), torch.ones(200, 8, dtype=torch.bool), tile=tile)
    with pytest.raises(ValueError, match=f"not tiles of {tile} outputs"):
        pack_for_sm90(stored)
