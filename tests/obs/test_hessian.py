"""The Hessian, its damping and its inverse.

Saliency.
"""

import pytest
import torch

from sparsefront.obs.sweep import damp_hessian, input_hessian, inverse, inverse_factor, saliency


def test_hessian_is_the_second_derivative():
    torch.manual_seed(0)
    x, weight = torch.randn(7, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    second = torch.autograd.functional.hessian(lambda w: (x @ w - x @ weight).square().sum(), weight)
    torch.testing.assert_close(input_hessian(x), second)


def test_damping_by_hand():
    hessian = torch.tensor([[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    damped, dead = damp_hessian(hessian, 0.1)
    assert dead.tolist() == [False, False, True]
    # The mean diagonal of the two live inputs is 3: 0.3 is added to each, and the dead one gets 3 of its own.
    torch.testing.assert_close(damped, torch.tensor([[4.3, 1.0, 0.0], [1.0, 2.3, 0.0], [0.0, 0.0, 3.3]]))
    assert hessian[0, 0] == 4 and hessian[2, 2] == 0


def test_factor_of_the_inverse(layer):
    _, hessian, _ = layer(1)
    factor = inverse_factor(hessian)
    torch.testing.assert_close(inverse(hessian) @ hessian, torch.eye(12, dtype=torch.float64))
    assert torch.equal(factor, factor.triu())
    for column in range(12):
        first_row = torch.linalg.inv(hessian[column:, column:])[0]
        torch.testing.assert_close(factor[column, column:] * factor[column, column], first_row)


def test_singular_hessian_is_named():
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    for invert in (inverse, inverse_factor):
        with pytest.raises(ValueError, match="encoder.fc: .*raise the damping"):
            invert(indefinite, "encoder.fc")
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="encoder.fc: its inputs"):
            damp_hessian(torch.tensor([[1.0, 0.0], [0.0, bad]]), 0.01, "encoder.fc")


def test_saliency_by_hand():
    weight = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, 1.0]])
    scores = saliency(weight, torch.tensor([1.0, 0.5, 2.0]), torch.tensor([False, False, True]))
    assert scores.tolist() == [[1, 8, 0], [0, 32, 0]]
    assert weight.tolist() == [[1, -2, 3], [0, 4, 1]]
