"""Fisher."""

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.importance.fisher import Fisher
from sparsefront.masks.weight_view import as_matrix


def test_against_plain_loops(hand_made):
    torch.manual_seed(1)
    weight, gradients = torch.randn(3, 4), [torch.randn(3, 4) for _ in range(5)]
    scores = Fisher(batches=5).scores({"layer": weight}, hand_made([{"layer": g} for g in gradients]))["layer"]
    for i in range(3):
        for j in range(4):
            mean_square = sum(float(g[i, j]) ** 2 for g in gradients) / 5
            assert float(scores[i, j]) == pytest.approx(float(weight[i, j]) ** 2 * mean_square, rel=1e-5)


def test_twice_the_change_of_a_quadratic_loss_at_its_minimum(hand_made):
    """Optimal Brain Damage: the loss sum h w^2 / 2 changes by h w^2 / 2 when w goes; gradients of variance h stand for h."""
    torch.manual_seed(0)
    curvature = torch.tensor([[0.5, 2.0, 8.0]])
    gradients = [{"layer": torch.randn(1, 3) * curvature.sqrt()} for _ in range(20_000)]
    weight = torch.tensor([[3.0, -1.0, 0.5]])
    scores = Fisher(batches=20_000).scores({"layer": weight}, hand_made(gradients))["layer"]
    torch.testing.assert_close(scores, curvature * weight**2, rtol=0.05, atol=0.0)


def test_differs_from_the_square_of_the_mean_gradient(hand_made):
    """Gradients of opposite batches cancel in their mean, not in the Fisher matrix."""
    scores = Fisher(batches=2).scores(
        {"layer": torch.tensor([[2.0]])}, hand_made([{"layer": torch.tensor([[sign]])} for sign in (1.0, -1.0)])
    )
    assert scores["layer"].item() == 4


def test_convolution_weights_and_gradients_are_left_alone(hand_made):
    weight, gradient = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    before = weight.clone(), gradient.clone()
    scores = Fisher(batches=1).scores({"conv": weight}, hand_made([{"conv": gradient}]))["conv"]
    torch.testing.assert_close(scores, as_matrix(weight * gradient).square())
    assert torch.equal(weight, before[0]) and torch.equal(gradient, before[1])


def test_bad_input_is_named(hand_made):
    with pytest.raises(ValueError, match="layer.*1 infinite"):
        Fisher(batches=1).scores({"layer": torch.ones(1, 2)}, hand_made([{"layer": torch.tensor([[1e30, 1.0]])}]))
    with pytest.raises(ValueError, match="fisher.*no calibration"):
        Fisher().scores({"layer": torch.ones(1, 1)})
    with pytest.raises(InvalidSetting, match="batches=0"):
        Fisher(batches=0)
