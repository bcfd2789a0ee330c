"""Errors of products are added by what they do to the loss.

The error of a pruned layer, from its inputs' second moments alone.

What no kernel can stand in for has a time where it is dense alone.

Layers are pruned for a while, in the places that masks [N, K] name.
"""

import pytest
import torch
from torch import nn

from sparsefront.allocation.assignment import Item, Option
from sparsefront.latency_search.evaluating import FLOOR, CandidateMasks, masked, output_error, weigh
from sparsefront.masks.weight_view import as_matrix
from sparsefront.obs.sweep import input_hessian
from sparsefront.patterns.element_wise import ElementWise

ERRORS = {0.25: 0.1, 0.5: 0.3, 0.75: 0.6}
LAYERS = ("matters", "little", "helps")


def items() -> list[Item]:
    options = [Option(None, 0.0), *(Option(0, sparsity, error) for sparsity, error in ERRORS.items())]
    return [Item((layer,), None, options) for layer in LAYERS]


def masks() -> CandidateMasks:
    return CandidateMasks({layer: torch.rand(8, 8) for layer in LAYERS}, (ElementWise(),))


def loss(made: dict[str, torch.Tensor]) -> float:
    """Rises by 4 and 1 for each part of the weights that goes; what `helps` lowers it."""
    rates = {"matters": 4.0, "little": 1.0, "helps": -1.0}
    return 2.0 + sum(rates[layer] * float((~mask).float().mean()) for layer, mask in made.items())


def test_errors_count_by_the_loss():
    found = weigh(items(), masks(), loss)
    matters, little, helps = ([option.error for option in item.options] for item in found)
    weight = (0.5 + 0.75) / (0.3 + 0.6)  # of the options that are tried
    assert little == pytest.approx([0.0, *(weight * error for error in ERRORS.values())])
    assert matters == pytest.approx([4 * error for error in little])
    least = FLOOR * (4 + 1) / 2 * weight
    assert helps == pytest.approx([0.0, *(least * error for error in ERRORS.values())])


def test_constant_loss_leaves_errors():
    assert weigh(items(), masks(), lambda made: 1.0) == items()


def test_error_is_a_share_of_outputs():
    x, weight = torch.randn(64, 12), torch.randn(8, 12)
    mask = torch.rand(8, 12) > 0.5
    gone, all_of_it = x @ (weight * ~mask).t(), x @ weight.t()
    expected = float(gone.square().sum() / all_of_it.square().sum())
    assert abs(output_error(weight, mask, input_hessian(x)) - expected) < 1e-5


def test_error_of_nothing_and_everything():
    x, weight = torch.randn(16, 6), torch.randn(4, 6)
    hessian = input_hessian(x)
    assert output_error(weight, torch.ones(4, 6, dtype=torch.bool), hessian) == 0.0
    assert abs(output_error(weight, torch.zeros(4, 6, dtype=torch.bool), hessian) - 1.0) < 1e-6
    assert output_error(torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.bool), hessian) == 0.0  # a dead layer


LAYERS_LAYERS = {"linear": nn.Linear(6, 4), "conv": nn.Conv2d(2, 4, 3), "channels_last": nn.Conv2d(2, 4, 3)}


@pytest.fixture
def net() -> nn.Module:
    net = nn.ModuleDict({name: layer for name, layer in LAYERS_LAYERS.items()})
    net["channels_last"].to(memory_format=torch.channels_last)
    return net


@pytest.mark.parametrize("layer", LAYERS_LAYERS)
def test_masks_name_places_of_matrices(net, layer):
    weight = net[layer].weight
    before, mask = weight.detach().clone(), torch.rand_like(as_matrix(weight.detach())) > 0.5
    with masked(net, {layer: mask}):
        assert torch.equal(as_matrix(weight.detach()), as_matrix(before) * mask)
    assert torch.equal(weight, before)
