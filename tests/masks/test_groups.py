"""Scores of groups."""

import pytest
import torch

from sparsefront.masks.groups import group_score, signed_norm
from sparsefront.patterns.block_wise import BlockWise


def test_importance_without_a_sign_has_its_l2_norm():
    scores = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert signed_norm(scores, (1,)).tolist() == [5, 0]
    assert group_score(scores, (1,), 2).tolist() == [2.5, 0]


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
