"""CAST: when masks are made, what scales leave behind, and that the result is exactly the pattern's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.training_masks import PeriodicMasks
from sparsefront.recovery.cast import Cast
from sparsefront.recovery.window_masks import scale_weights

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False, progress_bar=False)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def batches(count: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(count, 32, 16, generator=torch.Generator().manual_seed(0))
    return [(part, part[:, :8].argmax(1)) for part in x]


def trained(
    pattern, sparsity: float = 0.5, *, epochs: int = 4, lr: float = 3e-3, **settings
) -> tuple[nn.Module, sf.Masks]:
    net, dense = network(), network()
    masks = sf.prune(net, pattern, sparsity, layers=["0", "2"], tell=len)
    recovery = Cast(epochs=epochs, lr=lr, **settings)
    return net, sf.recover(net, masks, batches(), F.cross_entropy, recovery=recovery, dense_net=dense, trainer=TRAINER)


PATTERNS = {
    "n_m": NM(m=4),
    "permuted": NM(m=8, permutation="search"),
    "vectors": VectorWise(4, distribution="balanced"),
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_masks_end_exact(pattern):
    net, masks = trained(pattern)
    for name, mask in masks.items():
        weight = net.get_submodule(name).weight.detach()
        pattern.check(mask, 0.5, masks.spec.permutation(name))
        assert not weight[~mask].any() and (weight[mask] != 0).all()
    assert masks.rounds[0].steps == 32 and masks.rounds[0].samples == 4 * 8 * 32
    assert list(net.state_dict()) == list(network().state_dict()) and type(net[0]) is nn.Linear


def test_masks_follow_the_last_weights(monkeypatch):
    seen = []
    make = PeriodicMasks.make

    def watched(self):
        seen.append({name: weight.detach().clone() for name, weight in self._weights.items()})
        return make(self)

    monkeypatch.setattr(PeriodicMasks, "make", watched)
    net, masks = trained(NM(m=4), mask_every=10)
    assert len(seen) == 5, "before steps 0, 10, 20, 30, and in the end"
    for name, weight in seen[-1].items():
        assert torch.equal(masks[name], NM(m=4).mask(weight.abs(), 0.5))
        ratio = net.get_submodule(name).weight.detach()[masks[name]] / weight[masks[name]]
        assert (ratio - 1).abs().max() > 1e-3, "the scales have become part of the weights"
    assert torch.equal(seen[0]["0"], network()[0].weight), "it starts from the dense weights"


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Conv2d(3, 4, 2)], ids=["linear", "conv"])
def test_scales_join_the_weight(layer):
    net, before = nn.Sequential(layer), layer.weight.detach().clone()
    with scale_weights(net, ["0"], 2) as weights:
        assert torch.equal(layer.weight, before) and torch.equal(weights["0"], before)
        layer.parametrizations["weight"][0].scale.data.fill_(3.0)
        assert torch.equal(weights["0"], before)
    assert torch.equal(layer.weight, 3 * before) and isinstance(layer.weight, nn.Parameter)
    assert list(net.state_dict()) == ["0.weight", "0.bias"]


def test_failed_training_leaves_plain_network():
    net, dense = network(), network()
    masks = sf.prune(net, "n_m", 0.5, layers=["0"], tell=len)

    def broken(output, target):
        raise KeyError("broken")

    with pytest.raises(sf.InvalidSetting, match="loss=broken: fails when called.*KeyError"):
        sf.recover(net, masks, batches(), broken, recovery=Cast(epochs=1), dense_net=dense, trainer=TRAINER)
    assert list(net.state_dict()) == list(dense.state_dict())
