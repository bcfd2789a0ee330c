"""Masks that the operator benchmark takes from the patterns: the patterns' own, on uneven weights or on a checkpoint's."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sparsefront_kernels import FORMATS
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.bench.masks import Masks
from sparsefront_kernels.bench.plan import Chosen
from sparsefront_kernels.bench.problems import INPUTS_AND_OUTPUTS
from sparsefront_kernels.gathered.format import GatheredFormat

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.pruning.operator_masks import UnevenWeights, pattern_masks

CPU = torch.device("cpu")
PLAN = Path(__file__).parent.parent / "experiments" / "operators" / "h200.plan"
NAME = "sparsefront.pruning.operator_masks:pattern_masks"
OF_THE_BARS = [("tile_wise", 128), ("tile_wise", 64), ("tile_wise", 32), ("vector_wise", 32), ("block_wise", 64)]


def stored(source, n, k, sparsity):
    drawn = source.draw(n, k, sparsity, CPU)
    return drawn, GatheredFormat.from_dense(drawn.weight, drawn.mask, **drawn.storage["gathered"])


@pytest.mark.parametrize("sparsity", [0.5, 0.75, 0.9])
@pytest.mark.parametrize(("pattern", "granularity"), OF_THE_BARS)
def test_every_granularity_of_the_bars_is_stored_as_the_pattern_made_it(pattern, granularity, sparsity):
    source = Masks.named(family_masks("gathered"), NAME, {"pattern": pattern}).source("pattern", granularity)
    assert source.pattern == pattern
    drawn, weight = stored(source, 512, 384, sparsity)
    source.of.check(drawn.mask, sparsity)
    assert weight.tile == granularity
    assert torch.equal(weight.to_dense(), torch.where(drawn.mask, drawn.weight, 0.0))
    kept = int(drawn.mask.sum())
    assert abs(kept - (1 - sparsity) * 512 * 384) <= source.of.rounding_unit((512, 384))
    assert weight.values.numel() == kept, "the density of what is stored is that of the mask"


def test_tile_wise_prunes_scattered_outputs_and_its_tiles_are_uneven():
    _, weight = stored(pattern_masks(128), 1024, 512, 0.75)
    outputs = weight.output_index
    assert len(outputs) == 512 and outputs.diff().max() > 1, "1 - sqrt(0.25) of the outputs are gone"
    assert len(weight.tile_offsets.diff().unique()) > 1


def test_weights_are_uneven_and_reproducible():
    weight = UnevenWeights().weight(400, 300, CPU)
    assert torch.equal(weight, UnevenWeights().weight(400, 300, CPU))
    assert not torch.equal(weight, UnevenWeights(seed=1).weight(400, 300, CPU))
    even = UnevenWeights(row_spread=0, column_spread=0).weight(400, 300, CPU)
    for dim in (0, 1):
        sizes, flat = weight.square().mean(dim=dim).sqrt(), even.square().mean(dim=dim).sqrt()
        assert sizes.std() / sizes.mean() > 0.2 > 0.1 > flat.std() / flat.mean()


def test_a_compact_product_is_told():
    whole, compact = pattern_masks(64), pattern_masks(64, compact=True)
    assert compact.settings == f"{whole.settings} compact=true"
    assert compact.draw(512, 384, 0.75, CPU).compact and not whole.draw(512, 384, 0.75, CPU).compact


def test_settings_of_the_pattern_make_the_mask_and_are_told():
    plain, tuned = pattern_masks(64), pattern_masks(64, apriori_tuning=1.0)
    assert not torch.equal(plain.draw(256, 256, 0.75, CPU).mask, tuned.draw(256, 256, 0.75, CPU).mask)
    for part in dataclasses.fields(TileWise):
        assert part.name == "granularity" or f"{part.name}=" in plain.settings, part.name
    assert "apriori_tuning=1.0" in tuned.settings and "apriori_tuning=0.0" in plain.settings
    assert "weights=random row_spread=0.25 column_spread=0.25 seed=0" in plain.settings
    assert "m=null" in pattern_masks(32, pattern="vector_wise").settings


def test_weights_of_a_checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    weights = {name: torch.randn(128, 96) for name in ("b.weight", "a.weight")}
    save_file(weights | {"a.bias": torch.randn(128), "conv.weight": torch.randn(64, 8, 3, 3)}, path)
    first = pattern_masks(64, checkpoint=str(path))
    assert torch.equal(first.draw(128, 96, 0.5, CPU).weight, weights["a.weight"])
    assert first.draw(64, 72, 0.5, CPU).weight.shape == (64, 72), "a convolution as a matrix"
    named = pattern_masks(64, checkpoint=str(path), layer="b.weight")
    drawn = named.draw(128, 96, 0.5, CPU)
    assert torch.equal(drawn.weight, weights["b.weight"])
    assert torch.equal(drawn.mask, TileWise(64).mask(weights["b.weight"].abs(), 0.5))
    assert "weights=checkpoint checkpoint=model.safetensors layer=b.weight" in named.settings
    assert str(tmp_path) not in named.settings
    with pytest.raises(InvalidSetting, match="no weight of 7 inputs and 9 outputs .KxN.; there are 72x64, 96x128"):
        first.draw(9, 7, 0.5, CPU)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "knitted"}, "pattern=knitted: is one of block_2_4, .*tile_wise"),
        ({"pattern": "base"}, "pattern=base: is one of "),
        ({"width": 3}, "width=3: is no setting of tile_wise, which has granularity"),
        ({"element_overlay": 2}, "element_overlay=2"),
        ({"checkpoint": "nowhere.safetensors"}, "checkpoint=nowhere.safetensors: a safetensors file"),
        ({"layer": "a.weight"}, "layer=a.weight: is a layer of a checkpoint"),
        ({"row_spread": -1}, "row_spread=-1: must be a number from 0 to 3"),
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
def test_every_pattern_says_which_families_hold_its_masks(pattern, granularity, families):
    drawn = pattern_masks(granularity, pattern=pattern).draw(64, 64, 0.75 if pattern.endswith("2_4") else 0.5, CPU)
    assert drawn.storage.keys() == families
    for family, parameters in drawn.storage.items():
        stored = FORMATS[family].from_dense(drawn.weight, drawn.mask, **parameters)
        assert torch.equal(stored.to_dense(), torch.where(drawn.mask, drawn.weight, 0.0))


def test_the_shipped_plan_measures_the_bars():
    """Every line can be run, and the pattern's masks are measured at all shapes of the bars."""
    from sparsefront_kernels.bench import __main__ as command

    lines = [command.parser().parse_args(line) for line in command._lines(PLAN)]
    found = set()
    for line in lines:
        shapes, masks = command._shapes(line), command._masks(line)
        assert Chosen(tuple(line.kernels), tuple(line.layout), tuple(line.family)).entries(line.dtype[0])
        if line.dtype == ["fp16"] and "pattern" in line.distribution and "feature_major" in line.layout:
            assert line.sparsity == [0.5, 0.75, 0.9]
            kinds = {(masks.source("pattern", unit).pattern, unit) for unit in line.granularity}
            found |= {(shape.m, shape.k, shape.n, *kind) for shape in shapes for kind in kinds}
    sizes = [(m, k, n) for m in (4096, 1024, 256) for k, n in INPUTS_AND_OUTPUTS]
    assert found == {(*size, *kind) for size in sizes for kind in OF_THE_BARS}


def test_the_shipped_plan_asks_for_masks_that_nm_spmm_takes():
    from sparsefront_kernels.bench import __main__ as command
    from sparsefront_kernels.bench.baselines.nm_spmm import WINDOWS, launches, pack_for_nm_spmm

    lines = [command.parser().parse_args(line) for line in command._lines(PLAN)]
    beside = [line for line in lines if line.peers == ["nm_spmm"]]
    assert beside
    for line in beside:
        source = command._masks(line).source("pattern", *line.granularity)
        assert line.sparsity == list(WINDOWS) and line.dtype == ["fp32"]
        for sparsity, (window, kept) in WINDOWS.items():
            drawn = source.draw(128, 128, sparsity, CPU)
            stored = FORMATS["gathered"].from_dense(drawn.weight, drawn.mask, **drawn.storage["gathered"])
            assert (pack_for_nm_spmm(stored, 128).window, pack_for_nm_spmm(stored, 128).kept) == (window, kept)
            assert all(launches(shape, window, kept) for shape in command._shapes(line))


def test_the_benchmark_takes_them_by_name():
    """As from its command line: masks are made and stored on a CPU, though nothing can be timed there."""
    from sparsefront_kernels.bench import __main__ as command

    words = f"--shape 8x96x128 --distribution pattern --granularity 64 --masks {NAME} --mask-settings"
    asked = command.parser().parse_args([*words.split(), "pattern=tile_wise,apriori_tuning=0.5", "seed=3"])
    source = command._masks(asked).source("pattern", 64)
    assert source.of == TileWise(64, apriori_tuning=0.5) and source.weights.seed == 3
