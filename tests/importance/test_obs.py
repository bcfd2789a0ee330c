"""Optimal Brain Surgeon scores."""

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.importance.obs import OptimalBrainSurgeon


def test_twice_what_the_output_loses_when_a_weight_goes_and_the_others_make_up_for_it(hand_made):
    """Oracle: per weight, least squares of the layer's output on the other inputs."""
    torch.manual_seed(0)
    weight, x = torch.randn(3, 6), torch.randn(40, 6) @ torch.randn(6, 6)
    importance = OptimalBrainSurgeon(batches=1, damping=1e-7)
    scores = importance.scores({"layer": weight}, hand_made(inputs=[{"layer": x}]))["layer"]
    x, weight = x.double(), weight.double()
    for i in range(3):
        for j in range(6):
            others = [k for k in range(6) if k != j]
            best = torch.linalg.lstsq(x[:, others], x @ weight[i]).solution
            lost = (x @ weight[i] - x[:, others] @ best).square().sum()
            assert float(scores[i, j]) == pytest.approx(2 * float(lost), rel=1e-3)


def test_uncorrelated_inputs_rank_like_wanda(hand_made):
    """With a diagonal H, [H^-1]_jj is 1 / (2 ||x_j||^2): the score is twice Wanda's squared."""
    x = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    weight = torch.tensor([[3.0, -1.0, 0.5]])
    scores = OptimalBrainSurgeon(batches=1, damping=1e-7).scores({"layer": weight}, hand_made(inputs=[{"layer": x}]))[
        "layer"
    ]
    torch.testing.assert_close(scores, 2 * (weight * torch.tensor([1.0, 2.0, 3.0])).square(), rtol=1e-4, atol=1e-6)


def test_bad_input_is_named(hand_made):
    with pytest.raises(ValueError, match="layer: its inputs"):
        OptimalBrainSurgeon(batches=1).scores(
            {"layer": torch.ones(1, 2)}, hand_made(inputs=[{"layer": torch.tensor([[1.0, float("nan")]])}])
        )
    with pytest.raises(ValueError, match="obs.*no calibration"):
        OptimalBrainSurgeon().scores({"layer": torch.ones(1, 1)})
    with pytest.raises(InvalidSetting, match="batches=0"):
        OptimalBrainSurgeon(batches=0)
    with pytest.raises(InvalidSetting, match="damping=0"):
        OptimalBrainSurgeon(damping=0.0)
