"""Masks that the operator benchmark takes from the patterns: the patterns' own, on uneven weights or on a checkpoint's."""

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.bench.masks import Masks
from sparsefront_kernels.gathered.format import GatheredFormat

from sparsefront.errors import InvalidSetting
from sparsefront.pruning.operator_masks import pattern_masks

CPU = torch.device("cpu")
NAME = "sparsefront.pruning.operator_masks:pattern_masks"
OF_THE_BARS = [("tile_wise", 128, 0.5), ("tile_wise", 32, 0.9), ("vector_wise", 32, 0.75), ("block_wise", 64, 0.75)]


def stored(source, n, k, sparsity):
    drawn = source.draw(n, k, sparsity, CPU)
    return drawn, GatheredFormat.from_dense(drawn.weight, drawn.mask, **drawn.storage["gathered"])


@pytest.mark.parametrize(("pattern", "granularity", "sparsity"), OF_THE_BARS)
def test_every_granularity_is_stored(pattern, granularity, sparsity):
    source = Masks.named(family_masks("gathered"), NAME, {"pattern": pattern}).source("pattern", granularity)
    assert source.pattern == pattern
    drawn, weight = stored(source, 512, 384, sparsity)
    source.of.check(drawn.mask, sparsity)
    assert weight.tile == granularity
    assert torch.equal(weight.to_dense(), torch.where(drawn.mask, drawn.weight, 0.0))
    kept = int(drawn.mask.sum())
    assert abs(kept - (1 - sparsity) * 512 * 384) <= source.of.rounding_unit((512, 384))
    assert weight.values.numel() == kept, "the density of what is stored is that of the mask"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "knitted"}, "pattern=knitted: is one of block_2_4, .*tile_wise"),
        ({"pattern": "base"}, "pattern=base: is one of "),
        ({"width": 3}, "width=3: is no setting of tile_wise, which has granularity"),
        ({"element_overlay": 2}, "element_overlay=2"),
        ({"checkpoint": "nowhere.safetensors"}, "checkpoint=nowhere.safetensors: a safetensors file"),
        ({"layer": "a.weight"}, "layer=a.weight: is a layer of a checkpoint"),
        ({"row_spread": -1}, "row_spread=-1: must be greater than"),
        ({"norm": "l9"}, "norm=l9"),
    ],
)
def test_settings_that_cannot_be_used(settings, message):
    with pytest.raises(InvalidSetting, match=message):
        pattern_masks(64, **settings)


@pytest.mark.parametrize(
    ("pattern", "granularity", "families"),
    [
        ("n_m", 4, {"n_m", "semi_structured"}),
        ("block_wise", 16, {"blocked", "gathered"}),
        ("block_2_4", 16, {"blocked_2_4", "blocked", "gathered"}),
        ("tile_2_4", 16, {"gathered_2_4", "gathered"}),
        ("element_wise", 1, {"csr"}),
        ("uniform", 2, {"ell"}),
    ],
)
def test_families_of_every_pattern(pattern, granularity, families):
    drawn = pattern_masks(granularity, pattern=pattern).draw(64, 64, 0.75 if pattern.endswith("2_4") else 0.5, CPU)
    assert drawn.storage.keys() == families
    for family, parameters in drawn.storage.items():
        stored = FORMATS[family].from_dense(drawn.weight, drawn.mask, **parameters)
        assert torch.equal(stored.to_dense(), torch.where(drawn.mask, drawn.weight, 0.0))
