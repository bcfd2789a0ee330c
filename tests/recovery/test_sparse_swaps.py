"""Masks of a whole network by exchanges: what each layer sees, what patterns keep, and what is rejected."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.uniform import Uniform
from sparsefront.recovery.sparse_swaps import SparseSwaps, exchange_weights

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False, progress_bar=False)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


@pytest.fixture
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs that tell of each other: else no exchange could make up for anything."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 16, generator=generator)
    x = torch.randn(4, 32, 6, generator=generator) @ mix + 0.3 * torch.randn(4, 32, 16, generator=generator)
    return [(part, part[:, :8].argmax(1)) for part in x]


def swapped(net: nn.Module, masks: sf.Masks, batches: list, dense: nn.Module, **settings) -> sf.Masks:
    recovery = SparseSwaps(**{"batches": 4, "limit": None, "held_out": 0} | settings)
    return sf.recover(net, masks, batches, F.cross_entropy, recovery=recovery, dense_net=dense, trainer=TRAINER)


@torch.no_grad()
@pytest.mark.parametrize("sequential", [True, False])
def test_each_layer_against_one_by_one(batches, sequential):
    net, dense = network(), network()
    masks = sf.prune(net, "n_m", 0.5, layers=["0", "2"], tell=len)
    found = swapped(net, masks, batches, dense, sequential=sequential)
    x = torch.cat([x for x, _ in batches])
    first = exchange_weights(dense[0].weight, masks["0"], x.T @ x, span=4).mask
    hidden = dense[:2](x) if not sequential else F.relu(F.linear(x, dense[0].weight * first, dense[0].bias))
    second = exchange_weights(dense[2].weight, masks["2"], hidden.T @ hidden, span=4).mask
    assert torch.equal(found["0"], first) and torch.equal(found["2"], second)
    assert not torch.equal(first, masks["0"]) and not torch.equal(second, masks["2"])
    for name, mask in found.items():
        assert torch.equal(net.get_submodule(name).weight, dense.get_submodule(name).weight * mask), "weights stay"
    assert found.rounds[0].steps == 0 and found.rounds[0].seconds > 0


PATTERNS = {"n_m": NM(), "permuted": NM(m=8, permutation="search"), "uniform": Uniform(), "element_wise": ElementWise()}


@torch.no_grad()
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_swapped_masks_bring_outputs_closer(batches, pattern):
    net, dense = network(), network()
    masks = sf.prune(net, pattern, 0.5, layers=["0", "2"], tell=len)
    x = torch.cat([x for x, _ in batches])
    lost = (net[0](x) - dense[0](x)).square().sum()
    found = swapped(net, masks, batches, dense)
    for name, mask in found.items():
        pattern.check(mask, 0.5, found.spec.permutation(name))
        assert mask.sum() == masks[name].sum() and not torch.equal(mask, masks[name])
    assert (net[0](x) - dense[0](x)).square().sum() < 0.8 * lost


def test_harmful_exchanges_are_undone(batches, caplog):
    """On these batches the layers' errors fall and the loss rises: labels that only the given masks get right."""
    generator = torch.Generator().manual_seed(1)
    dense = network()
    with torch.no_grad():
        dense[2].weight.mul_(20)
    losses, held_masks = {}, {}
    x = torch.randn(32, 16, generator=generator)
    for held_out in (0, 2):
        net = copy.deepcopy(dense)
        masks = sf.prune(net, "n_m", 0.5, layers=["0", "2"], tell=len)
        held = [(x, net(x).argmax(1))] * 2
        caplog.clear()
        with caplog.at_level("INFO"):
            held_masks[held_out] = swapped(net, masks, [*batches, *held], dense, held_out=held_out)
        losses[held_out] = F.cross_entropy(net(x), held[0][1]).item()
    assert losses[2] < losses[0] and "2 layers would raise the loss on held-out batches" in caplog.text
    assert all(torch.equal(mask, masks[name]) for name, mask in held_masks[2].items())
    assert torch.equal(net[0].weight, dense[0].weight * masks["0"]), "the weights are back"
