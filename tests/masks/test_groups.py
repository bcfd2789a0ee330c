"""Scores of groups."""

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import group_score, signed_norm
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.vector_wise import VectorWise


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("l1", 20.0), ("l2", 12.0), ("mean", 5.0), ("rms", 6.0), ("l2_over_length", 3.0)]
)
def test_a_score_follows_its_formula(aggregate, expected):
    assert group_score(torch.tensor([[10.0, 6.0, 2.0, 2.0]]), (1,), 4, aggregate).tolist() == pytest.approx([expected])


def test_signed_importance_has_signed_score():
    assert group_score(torch.tensor([[2.0, -3.0]]), (1,), 2, "l1").tolist() == [-1.0]


@pytest.mark.parametrize("pattern", [VectorWise, BlockWise])
def test_unknown_score_is_named(pattern):
    with pytest.raises(InvalidSetting, match="aggregate=max: must be 'l2' or 'l1'"):
        pattern(granularity=4, aggregate="max")


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1.0, 1e30])
def test_norm_at_any_scale(scale):
    """Squares of these neither vanish nor overflow, as they would in float32."""
    scores = scale * torch.tensor([[3.0, 4.0], [-3.0, -4.0], [0.0, 2.0]])
    expected = scale * torch.tensor([5.0, -5.0, 2.0])
    torch.testing.assert_close(signed_norm(scores, (1,)), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(signed_norm(scores.abs(), (1,)), expected.abs(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_larger_weights_raise_the_score(seed):
    torch.manual_seed(seed)
    scores = torch.randn(20, 6)
    assert (signed_norm(scores + torch.rand(20, 6), (1,)) >= signed_norm(scores, (1,))).all()
