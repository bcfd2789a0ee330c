"""Layers are pruned for a while, in the places that masks [N, K] name."""

import pytest
import torch
from torch import nn

from sparsefront.latency_search.evaluating import masked
from sparsefront.masks.weight_view import as_matrix

LAYERS = {"linear": nn.Linear(6, 4), "conv": nn.Conv2d(2, 4, 3), "channels_last": nn.Conv2d(2, 4, 3)}


@pytest.fixture
def net() -> nn.Module:
    net = nn.ModuleDict({name: layer for name, layer in LAYERS.items()})
    net["channels_last"].to(memory_format=torch.channels_last)
    return net


@pytest.mark.parametrize("layer", LAYERS)
def test_masks_name_places_of_the_matrix(net, layer):
    weight = net[layer].weight
    before, mask = weight.detach().clone(), torch.rand_like(as_matrix(weight.detach())) > 0.5
    with masked(net, {layer: mask}):
        assert torch.equal(as_matrix(weight.detach()), as_matrix(before) * mask)
    assert torch.equal(weight, before)


def test_an_error_leaves_the_network_as_it_was(net):
    before = net["linear"].weight.detach().clone()
    with pytest.raises(ZeroDivisionError), masked(net, {"linear": torch.zeros(4, 6, dtype=torch.bool)}):
        raise ZeroDivisionError
    assert torch.equal(net["linear"].weight, before)
