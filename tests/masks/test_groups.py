"""Scores of groups."""

from functools import partial

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import group_score, signed_norm
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise


def test_importance_without_a_sign_has_its_l2_norm():
    scores = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert signed_norm(scores, (1,)).tolist() == [5, 0]


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("l1", 20.0), ("l2", 12.0), ("mean", 5.0), ("rms", 6.0), ("l2_over_length", 3.0)]
)
def test_a_score_follows_its_formula(aggregate, expected):
    assert group_score(torch.tensor([[10.0, 6.0, 2.0, 2.0]]), (1,), 4, aggregate).tolist() == pytest.approx([expected])


@pytest.mark.parametrize(("aggregate", "alike"), [("mean", True), ("rms", True), ("l2_over_length", False)])
def test_scores_corrected_for_the_length_do_not_favor_short_groups(aggregate, alike):
    short, long = (group_score(torch.full((1, n), 0.5), (1,), n, aggregate).item() for n in (4, 16))
    assert (short == pytest.approx(long)) is alike and short >= long - 1e-6


def test_signed_importance_has_a_signed_l1_score():
    assert group_score(torch.tensor([[2.0, -3.0]]), (1,), 2, "l1").tolist() == [-1.0]


@pytest.mark.parametrize("pattern", [VectorWise, partial(VectorWise, distribution="balanced", m=2)])
def test_l1_keeps_the_larger_sum_and_l2_the_larger_norm(pattern):
    """(3.5, 0) against (2, 2): l2 is 3.5 against 2.8, l1 3.5 against 4."""
    importance = torch.tensor([[3.5, 2.0], [0.0, 2.0]]).repeat(1, 2)
    kept = {aggregate: pattern(granularity=2, aggregate=aggregate).mask(importance, 0.5) for aggregate in ("l1", "l2")}
    assert kept["l2"].any(dim=0).tolist() == [True, False] * 2 and kept["l1"].any(dim=0).tolist() == [False, True] * 2


def test_blocks_and_tiles_too_are_scored_as_asked():
    importance = torch.tensor([[3.5, 0.0, 2.0, 2.0]])
    blocks = {name: BlockWise("1x2", aggregate=name).mask(importance, 0.5) for name in ("l1", "l2")}
    assert blocks["l2"].tolist() == [[True, True, False, False]] and blocks["l1"].tolist() == [
        [False, False, True, True]
    ]
    outputs = {
        name: TileWise(1, input_multiple=1, aggregate=name).mask(importance.view(2, 2), 0.75)
        for name in ("mean", "rms")
    }
    assert outputs["rms"].any(dim=1).tolist() == [True, False] and outputs["mean"].any(dim=1).tolist() == [False, True]


@pytest.mark.parametrize("pattern", [VectorWise, BlockWise])
def test_a_score_of_groups_that_is_not_on_offer_is_named(pattern):
    with pytest.raises(InvalidSetting, match="aggregate=max: must be l2 or l1"):
        pattern(granularity=4, aggregate="max")


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1.0, 1e30])
def test_scores_of_any_scale_have_a_norm(scale):
    """Squares of these neither vanish nor overflow, as they would in float32."""
    scores = scale * torch.tensor([[3.0, 4.0], [-3.0, -4.0], [0.0, 2.0]])
    expected = scale * torch.tensor([5.0, -5.0, 2.0])
    torch.testing.assert_close(signed_norm(scores, (1,)), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(signed_norm(scores.abs(), (1,)), expected.abs(), rtol=1e-6, atol=0)


def test_what_is_negative_counts_against_a_group():
    scores = torch.tensor([[3.0, 4.0], [-3.0, -4.0], [4.0, -3.0], [-4.0, 3.0]])
    assert signed_norm(scores, (1,)).tolist() == [5, -5, 1, -1]


@pytest.mark.parametrize("seed", range(3))
def test_a_larger_weight_never_lowers_the_score_of_its_group(seed):
    torch.manual_seed(seed)
    scores = torch.randn(20, 6)
    assert (signed_norm(scores + torch.rand(20, 6), (1,)) >= signed_norm(scores, (1,))).all()


def test_blocks_that_shrink_go_before_blocks_that_stand_still():
    movement = torch.zeros(4, 4)
    movement[:2, :2], movement[2:, 2:] = -5.0, 1.0
    kept = BlockWise(granularity=2).mask(movement, 0.25)
    assert not kept[:2, :2].any() and int(kept.sum()) == 12
