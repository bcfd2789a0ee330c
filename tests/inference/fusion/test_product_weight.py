"""Joined and compact_hidden weights: what the formats hold, and the arithmetic of constants that are folded in."""

import pytest
import torch
from sparsefront_kernels import FORMATS
from torch import nn
from torch.nn.functional import gelu

from sparsefront.export.packed_layers import store
from sparsefront.inference.fusion.prepared_block import compact_hidden
from sparsefront.inference.fusion.sites import ProductWeight, join
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_2_4 import Tile24


def weight_of(n, k, mask, family="gathered", bias=True, **parameters):
    layer = nn.Linear(k, n, bias=bias, dtype=torch.float64)
    layer.weight.data.mul_(mask)
    return ProductWeight.of("layer", layer, FORMATS[family].from_dense(layer.weight.data, mask, **parameters), mask)


def tile_mask(n, k, tile, outputs, kept=0.5):
    """Some outputs keep nothing, tiles of the others share inputs."""
    mask = torch.zeros(n, k, dtype=torch.bool)
    alive = torch.randperm(n)[:outputs].sort().values
    for members in alive.split(tile):
        mask[members] = torch.rand(k) < kept
    return mask


@pytest.mark.parametrize("outputs", [(24, 20, 32), (32, 32, 32), (1, 9, 17), (0, 8, 8)])
def test_tiles_of_joined_layers_stay_whole(outputs):
    parts = [weight_of(32, 24, tile_mask(32, 24, 8, alive), tile=8) for alive in outputs]
    joined = join(parts)
    assert torch.equal(joined.stored.to_dense(), torch.cat([part.weight for part in parts]))
    assert torch.equal(joined.bias, torch.cat([part.bias for part in parts])) and joined.rows == (32, 32, 32)
    kept = [tile for tile in joined.stored.panels() if len(tile[1])]
    assert all(len(set((members // 32).tolist())) == 1 and len(members) == 8 for members, _, _ in kept)
    assert len(kept) == sum(-(-int(part.mask.any(1).sum()) // 8) for part in parts)  # no tile more than before


def test_unjoinable_layers_stay_apart():
    mask = tile_mask(32, 24, 8, 32)
    tiles, wide = weight_of(32, 24, mask, tile=8), weight_of(32, 24, tile_mask(32, 24, 16, 32), tile=16)
    assert join([tiles, wide]) is None
    pattern = NM(2, 4, permutation="search")
    weight = torch.randn(32, 16)
    permutation = pattern.find_permutation(weight.abs(), 0.5)
    mask = pattern.mask(weight.abs(), 0.5)
    layer = nn.Linear(16, 32)
    layer.weight.data = weight * mask
    stored = store(layer.weight.data, mask, pattern.storage((32, 16), 0.5), permutation)
    part = ProductWeight.of("layer", layer, stored, mask)
    assert (join([part, part]) is None) == (stored.input_order is not None)


@pytest.mark.parametrize("alive", [0, 1, 16, 33, 48])
@pytest.mark.parametrize("down_family", ["gathered", "dense"])
def test_pruned_features_fold_into_bias(alive, down_family):
    up = weight_of(64, 24, tile_mask(64, 24, 8, alive), tile=8)
    mask = tile_mask(24, 64, 8, 20)
    down = (
        weight_of(24, 64, mask, tile=8)
        if down_family == "gathered"
        else ProductWeight.of("down", nn.Linear(64, 24, dtype=torch.float64), None, None)
    )
    up_small, down_small = compact_hidden(up, down, "gelu")
    assert len(up_small.weight) == max(16, -(-alive // 16) * 16) == down_small.weight.shape[1]
    assert torch.equal(up_small.stored.to_dense(), up_small.weight)
    if down_family == "gathered":
        assert torch.equal(down_small.stored.to_dense(), down_small.weight)
    x = torch.randn(7, 24, dtype=torch.float64)
    before = gelu(x @ up.weight.t() + up.bias) @ down.weight.t() + down.bias
    after = gelu(x @ up_small.weight.t() + up_small.bias) @ down_small.weight.t() + down_small.bias
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alive", [16, 24])
def test_tiles_of_2_4_join(alive):
    pattern = Tile24(8)
    parts = []
    for _ in range(2):
        weight, mask = torch.randn(32, 24), torch.zeros(32, 24, dtype=torch.bool)
        mask[:alive] = pattern.mask(weight[:alive].abs(), 0.5)
        parts.append(weight_of(32, 24, mask, family="gathered_2_4", tile=8))
    joined = join(parts)
    assert torch.equal(joined.stored.to_dense(), joined.weight)
    assert len(joined.stored.inputs) == sum(len(part.stored.inputs) for part in parts), "no more windows than before"
    mask[0] = False
    narrow = weight_of(32, 24, mask, family="gathered_2_4", tile=8)
    assert join([narrow, parts[0]]) is None and join([parts[0], narrow]) is not None


def test_reordered_outputs_keep_their_tiles():
    pattern = ShuffledBlock(8)
    layer = nn.Linear(24, 32)
    permutation = pattern.find_permutation(layer.weight.data.abs(), 0.5)
    mask = pattern.mask(layer.weight.data.abs(), 0.5)
    layer.weight.data.mul_(mask)
    part = ProductWeight.of(
        "layer", layer, store(layer.weight.data, mask, pattern.storage((32, 24), 0.5), permutation), mask
    )
    joined = join([part, part])
    assert torch.equal(joined.stored.to_dense(), joined.weight)
    assert joined.stored.values.numel() == 2 * part.stored.values.numel()  # no zeros are stored
