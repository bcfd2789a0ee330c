"""The blocked weight laid out for the Hopper kernel: walked as the kernel does, it is the same weight."""

import drawn_masks
import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.blocked.gathered_tiles import gathered_tiles
from sparsefront_kernels.blocked.sm90 import block_unsupported_reason, pack_for_blocked_sm90


def stored_weight(block, rows, columns, density=0.4, seed=0):
    n, k = rows * block[0], columns * block[1]
    mask = drawn_masks.blocks(*block, density, seed)(n, k)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return FORMATS["blocked"].from_dense(weight, mask, block=block)


@pytest.mark.parametrize("block", [(32, 64), (96, 64), (64, 8), (64, 24)])
def test_blocks_without_halves(block):
    assert "takes blocks of a multiple of 64 outputs" in block_unsupported_reason(block)
    with pytest.raises(ValueError, match="blocked: takes blocks of a multiple of 64 outputs"):
        pack_for_blocked_sm90(stored_weight(block, 2, 2))


@pytest.mark.parametrize("block", [(4, 64), (32, 32), (16, 16), (3, 5)])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_gathered_tiles_of_blocks(block, density):
    stored = stored_weight(block, 6, 7, density)
    tiles = gathered_tiles(stored)
    assert tiles.tile == block[0] and torch.equal(tiles.to_dense(), stored.to_dense())
