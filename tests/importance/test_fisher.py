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
