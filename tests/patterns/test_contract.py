"""What every pattern promises of the mask of a layer, over all YAML files of the group; a new pattern is found by its file."""

import math

import pytest
import torch
from every_pattern import UNIT, assert_near, expressible, scores
from sparsefront_kernels.packing import FORMATS

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import follow_guides, in_runs, select_in_layer
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.base import Pattern, new_mask, step_groups


def test_granularity_of_a_yaml(from_yaml):
    assert from_yaml("tile_wise").granularity == 128
    assert from_yaml("tile_wise", 64).granularity == 64
    assert from_yaml("block_wise", "4x64").block == (4, 64)


def test_shape_dtype_device_sparsity_invariant(pattern):
    shape = (24, 96)
    assert expressible(pattern, shape), "the contract must have something to test"
    for sparsity in expressible(pattern, shape):
        mask = pattern.mask(scores(*shape), sparsity)
        assert mask.shape == shape and mask.dtype == torch.bool and mask.device.type == "cpu"
        assert_near(pattern, mask, sparsity)
        pattern.check(mask, sparsity)


@pytest.mark.gpu
def test_mask_on_a_gpu(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96).round(decimals=1)  # with ties
        mask = pattern.mask(importance.cuda(), sparsity)
        assert mask.is_cuda
        pattern.check(mask, sparsity)
        if not (
            pattern.uses_granularity or pattern.name == "channel"
        ):  # sums of squares may differ in their last digit between devices
            assert torch.equal(mask.cpu(), pattern.mask(importance, sparsity))


def test_equal_scores_prune_what_is_asked(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        for value in (0.0, 1.0, 1e-30):
            mask = pattern.mask(torch.full((24, 96), value), sparsity)
            assert_near(pattern, mask, sparsity)
            pattern.check(mask, sparsity)


def test_the_highest_sparsity_keeps_something(pattern):
    """As high as the pattern goes, in a layer of few groups: rounding must not take the last one."""
    for shape in ((UNIT, 64), (2 * UNIT, 64)):
        for sparsity in (0.999, 0.98, 0.9, 0.75, 0.5):
            try:
                mask = pattern.mask(scores(*shape), sparsity)
            except (InvalidSetting, ValueError):
                continue
            assert mask.any()
            assert_near(pattern, mask, sparsity)
            pattern.check(mask, sparsity)
            break
        else:
            pytest.fail(f"no sparsity at all for {shape}")


@pytest.mark.parametrize("shape", [(25, 96), (24, 97), (23, 61), (1, 64), (1, 7), (13, 1), (1, 1)], ids=str)
def test_odd_shapes_are_masked_or_rejected(pattern, shape):
    for sparsity in (0.5, 0.75):
        try:
            pattern.check_sparsity(sparsity)
        except InvalidSetting:
            continue
        reason = pattern.unsupported_reason(shape, sparsity)
        if reason is None:
            mask = pattern.mask(scores(*shape), sparsity)
            assert_near(pattern, mask, sparsity)
            pattern.check(mask, sparsity)
        else:
            assert any(str(count) in reason for count in shape) and "\n" not in reason
            with pytest.raises(ValueError, match="cannot divide"):
                pattern.mask(scores(*shape), sparsity)


def test_mask_follows_ranks_alone(pattern):
    """Whatever the scale, layout and dtype of the scores; nothing is drawn; sparsity 0 keeps everything."""
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96).half().double()
        expected = pattern.mask(importance, sparsity)
        assert sparsity > 0 or expected.all()
        scaled = [importance * scale for scale in (2.0**20, 2.0**100, 2.0**-80)]
        for same in (importance.clone(), importance.half(), importance.t().contiguous().t(), *scaled):
            assert torch.equal(pattern.mask(same, sparsity), expected)


def test_a_broken_mask_is_named(pattern):
    with pytest.raises(ValueError, match="bool"):
        pattern.check(torch.ones(24, 96), 0.5)
    if pattern.name == "element_wise" or getattr(pattern, "element_overlay", 0.0):
        return  # any bool matrix is an element-wise mask, and one of tiles and single weights
    broken = torch.ones(24, 96, dtype=torch.bool)
    broken[1, 2] = False
    with pytest.raises(ValueError, match=pattern.name):
        pattern.check(broken, 0.5)


def test_bad_scores_and_sparsities_are_rejected(pattern):
    for bad in (math.nan, math.inf):
        importance = scores(24, 96)
        importance[3, 5] = bad
        with pytest.raises(ValueError, match="not finite"):
            pattern.mask(importance, 0.5)
    for sparsity in (-0.1, 1.0, 1.5, math.nan):
        with pytest.raises(InvalidSetting, match="sparsity"):
            pattern.mask(scores(24, 96), sparsity)


def test_the_canonical_format_holds_every_mask(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        weight = scores(24, 96) + 0.5
        permutation = pattern.find_permutation(weight, sparsity) or Permutation()
        mask = pattern.mask(weight, sparsity)
        family, parameters = pattern.storage((24, 96), sparsity)
        stored = FORMATS[family].from_dense(weight * mask, mask, **parameters, **permutation.orders())
        assert torch.equal(stored.to_dense(), weight * mask)


def test_no_exchange_keeps_more(pattern):
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96, seed=5)
        permutation = pattern.find_permutation(importance, sparsity) or Permutation()
        permuted = permutation.apply(importance)
        mask = allowed = torch.ones_like(permuted, dtype=torch.bool)
        for step in pattern.steps(sparsity, (24, 96)):
            groups = step_groups(step, permuted, mask, allowed)
            kept = select_in_layer(groups, permuted.numel(), step.target)
            [ranked] = follow_guides([groups], permuted.numel(), step.target)
            values, survives = ranked.mark(), kept
            if groups.multiple > 1:  # then runs of them are exchanged
                runs = in_runs(ranked)
                values = runs.groups.scores
                survives = kept.gather(-1, runs.order)[..., :: groups.multiple]
            rivals = (-1, groups.scores.shape[-1]) if groups.keep_of_last else (1, values.numel())
            values, survives = values.reshape(rivals), survives.reshape(rivals)
            worst_kept = values.masked_fill(~survives, float("inf")).amin(dim=1)
            best_pruned = values.masked_fill(survives, float("-inf")).amax(dim=1)
            assert (worst_kept >= best_pruned).all()
            mask = new_mask(step, kept, permuted, mask, allowed)
        assert torch.equal(permutation.invert(mask), pattern.mask(importance, sparsity))


def interchangeable(pattern: Pattern) -> tuple[int, int]:
    """How many outputs, and how many inputs, may change places with as many others; 0 = not even so."""
    if getattr(pattern, "apriori_tuning", 0.0):
        return 0, 0  # densities tie, and ties go by index
    if pattern.name == "tile_wise":
        return 0, 1
    if pattern.name == "channel":
        return 1, 1
    if getattr(pattern, "transposable", False):
        return 4, 4  # tiles
    if not hasattr(pattern, "block"):
        return 0, 0
    return pattern.block[0], 0 if pattern.balanced else pattern.block[1]


def test_moved_groups_keep_their_masks(pattern):
    outputs, inputs = interchangeable(pattern)
    for sparsity in expressible(pattern, (24, 96)):
        importance = scores(24, 96, seed=6)
        if pattern.find_permutation(importance, sparsity) is not None:
            continue
        mask = pattern.mask(importance, sparsity)
        for dim, unit in ((0, outputs), (1, inputs)):
            if unit:
                units = torch.randperm(mask.shape[dim] // unit, generator=torch.Generator().manual_seed(7))
                order = (units[:, None] * unit + torch.arange(unit)).flatten()
                moved = pattern.mask(importance.index_select(dim, order), sparsity)
                assert torch.equal(moved, mask.index_select(dim, order))
