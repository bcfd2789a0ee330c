"""The error of a pruned layer, from its inputs' second moments alone."""

import torch

from sparsefront.latency_search.evaluating import output_error
from sparsefront.obs.sweep import input_hessian


def test_it_is_the_share_of_the_output_that_goes():
    x, weight = torch.randn(64, 12), torch.randn(8, 12)
    mask = torch.rand(8, 12) > 0.5
    gone, all_of_it = x @ (weight * ~mask).t(), x @ weight.t()
    expected = float(gone.square().sum() / all_of_it.square().sum())
    assert abs(output_error(weight, mask, input_hessian(x)) - expected) < 1e-5


def test_nothing_and_everything():
    x, weight = torch.randn(16, 6), torch.randn(4, 6)
    hessian = input_hessian(x)
    assert output_error(weight, torch.ones(4, 6, dtype=torch.bool), hessian) == 0.0
    assert abs(output_error(weight, torch.zeros(4, 6, dtype=torch.bool), hessian) - 1.0) < 1e-6
    assert output_error(torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.bool), hessian) == 0.0  # a dead layer


def test_what_no_input_reaches_costs_nothing():
    x, weight = torch.randn(16, 6), torch.randn(4, 6)
    x[:, 2] = 0.0
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[:, 2] = False
    assert output_error(weight, mask, input_hessian(x)) == 0.0
