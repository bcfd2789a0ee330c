"""Pruned weights stay exactly zero whatever the optimizer does, and leave no trace in checkpoints."""

import pytest
import torch
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import BUFFER
from sparsefront.pruning.masked_weights import MaskedWeights


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))


def random_masks(net: nn.Module, generator_seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(generator_seed)
    return {
        name: torch.rand(as_matrix(net.get_submodule(name).weight).shape, generator=generator) < 0.5
        for name in ("0", "2")
    }


def test_revived_layer_is_named(net):
    masks = random_masks(net)
    masked = MaskedWeights(net, masks)
    masked.set(masks)
    with torch.no_grad():
        net[2].weight.fill_(1.0)
    with pytest.raises(ValueError, match="layer 2: .* not zero"):
        masked.check()


def test_masks_stay_out_of_state_dict(net):
    keys = list(net.state_dict())
    masked, masks = MaskedWeights(net, ["0", "2"]), random_masks(net)
    masked.set(masks)
    assert list(net.state_dict()) == keys
    assert masked.sparsity == 1 - torch.cat([mask.flatten() for mask in masks.values()]).double().mean()
    net.to("meta")
    assert all(mask.device.type == "meta" for mask in masked.masks().values())


@pytest.mark.parametrize(
    ("layer", "shape", "dtype"),
    [("2", (3, 15), torch.bool), ("2", (3, 16), None), ("2", (16, 3), torch.bool), ("0", (3, 3, 2, 4), torch.bool)],
)
def test_mask_of_another_shape_is_rejected(net, layer, shape, dtype):
    with pytest.raises(ValueError, match=f"mask of {layer}"):
        MaskedWeights(net, [layer]).set({layer: torch.ones(shape, dtype=dtype)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1.0])
def test_pruned_weight_becomes_zero(net, value):
    """An optimizer that diverged on a pruned weight must not carry it into the forward."""
    masks = random_masks(net)
    masked = MaskedWeights(net, masks)
    masked.set(masks)
    kept = {name: net.get_submodule(name).weight[getattr(net.get_submodule(name), BUFFER)].clone() for name in masks}
    with torch.no_grad():
        for name in masks:
            net.get_submodule(name).weight[~getattr(net.get_submodule(name), BUFFER)] = value
    masked.apply()
    masked.check()
    for name in masks:
        weight = net.get_submodule(name).weight
        assert torch.equal(weight[weight == 0], torch.zeros_like(weight[weight == 0])) and not weight.isnan().any()
        assert torch.equal(weight[getattr(net.get_submodule(name), BUFFER)], kept[name])


def test_replaced_mask_holds_at_once(net):
    """What is remembered of a mask follows the buffer: a checkpoint is loaded into it, or it moves with the network."""
    masks = random_masks(net)
    masked = MaskedWeights(net, masks)
    masked.set(masks)
    getattr(net[2], BUFFER).fill_(False)
    masked.apply()
    assert not net[2].weight.any() and net[0].weight.any()
    setattr(net[0], BUFFER, torch.zeros_like(getattr(net[0], BUFFER)))
    masked.apply()
    assert not net[0].weight.any()


class Masked(nn.Linear):
    """A layer with masks of its own, as in many a user's code."""

    def __init__(self, name: str, mask: torch.Tensor) -> None:
        super().__init__(16, 16)
        self.own = name
        self.register_buffer(name, mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight * getattr(self, self.own), self.bias)


@pytest.mark.parametrize("mask", [torch.ones(16, 16), torch.ones(16, 16, dtype=torch.bool)], ids=["float", "bool"])
def test_attribute_of_the_masks_name(mask):
    net = nn.Sequential(Masked(BUFFER, mask))
    with pytest.raises(
        InvalidSetting, match=f"^net=Sequential: has an attribute {BUFFER} in 0, where its mask is kept"
    ):
        MaskedWeights(net, ["0"])
    assert torch.equal(net.state_dict()[f"0.{BUFFER}"], mask)
