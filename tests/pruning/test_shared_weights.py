"""Layers that share one weight have one mask, whatever makes it; what would give them two is told."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.allocation.base import PerLayerAllocation

LAYERS = ["first", "between", "second"]


class Tied(nn.Module):
    """Two layers of one weight, which are given different inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.between, self.second = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.between(self.first(x).relu()).relu()).relu())


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Tied()


@pytest.fixture
def batches() -> list:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 16, generator=generator)
    return [(torch.randn(32, 6, generator=generator) @ mix, torch.randint(0, 4, (32,))) for _ in range(4)]


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("pattern", ["n_m", "element_wise"])
def test_swaps_find_one_mask(net, batches, pattern, sequential):
    dense = copy.deepcopy(net)
    masks = sf.prune(net, pattern, 0.5, layers=LAYERS, tell=len)
    found = sf.recover(
        net,
        masks,
        batches,
        F.cross_entropy,
        recovery=sf.recovery.SparseSwaps(batches=4, sequential=sequential, held_out=0),
        dense_net=dense,
        trainer=sf.TrainerSettings(accelerator="cpu", checkpoint=False),
    )
    assert torch.equal(found["first"], found["second"]) and not torch.equal(found["first"], masks["first"])
    assert (net.first.weight == 0).float().mean() == found.sparsity == 0.5
    inputs: list[torch.Tensor] = []
    for layer in (dense.first, dense.second):
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    x = torch.cat([x for x, _ in batches])

    def lost(mask):
        gone = dense.first.weight.masked_fill(mask, 0.0)
        return sum((x @ gone.T).square().sum() for x in inputs)

    with torch.no_grad():
        dense(x)
        assert lost(found["first"]) < lost(masks["first"])


class ByName(PerLayerAllocation):
    """More of some layers, by their names."""

    name = "by_name"
    fixed_by_first_scores = False

    def layer_sparsities(self, weight_shapes, sparsity, lost):
        return {layer: 0.75 if layer == "second" else 0.25 for layer in weight_shapes}


def test_two_sparsities_of_one_weight(net):
    message = "^allocation=by_name: gives first a sparsity of 0.25 and second, which shares its weight, one of 0.75: they need"
    with pytest.raises(sf.InvalidSetting, match=message):
        sf.prune(net, "element_wise", 0.5, allocation=ByName(), layers=LAYERS, tell=len)
    assert net.first.weight.all()
    sf.prune(net, "element_wise", 0.5, allocation=ByName(), layers=LAYERS, ignore=["first", "second"], tell=len)


class Language(nn.Module):
    """A head of the embedding's weight, as language models have it, and further ways to share one."""

    def __init__(self, tie) -> None:
        super().__init__()
        self.tokens, self.body, self.head, self.last = (
            nn.Embedding(16, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 4),
        )
        tie(self)

    def forward(self, tokens):
        return self.last(self.head(self.body(self.tokens(tokens)).relu()))


def one_parameter(net):
    net.head.weight = net.tokens.weight


def one_storage(net):
    net.head.weight = nn.Parameter(net.tokens.weight.data)


def transposed(net):
    net.tokens.weight = nn.Parameter(net.head.weight.data.T)


def a_part(net):
    net.rows = nn.Parameter(net.head.weight.data[3:5])


def a_buffer(net):
    net.register_buffer("seen", net.head.weight.data)


TIES = {
    one_parameter: "the weight of tokens (Embedding), which stays dense",
    one_storage: "the weight of tokens (Embedding), which stays dense",
    transposed: "the weight of tokens (Embedding), which stays dense",
    a_part: "the rows of the network (Language), which stays dense",
    a_buffer: "the seen of the network (Language), which stays dense",
}


@pytest.mark.parametrize("tie", TIES, ids=lambda tie: tie.__name__)
def test_weight_that_stays_dense_elsewhere(tie):
    net = Language(tie)
    message = re.escape(f"ignore=(): head is pruned, and its weight is also {TIES[tie]}: leave both dense")
    with pytest.raises(sf.InvalidSetting, match=f"^{message}$"):
        sf.prune(net, "element_wise", 0.5, layers="head", tell=len)
    assert net.head.weight.all()
    mask = {"head": torch.rand(16, 16) < 0.5}
    with pytest.raises(sf.InvalidSetting, match="^masks=given: head is pruned, and its weight is also the "):
        sf.recover(net, mask, [(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2))], F.cross_entropy)
    sf.prune(net, "element_wise", 0.5, layers="body", tell=len)


def test_two_parameters_of_one_tensor():
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    net[1].weight = nn.Parameter(net[0].weight.data)
    masks = sf.prune(net, "element_wise", 0.5, layers=["0", "1"], tell=len)
    assert torch.equal(masks["0"], masks["1"])
    flat = torch.randn(2, 8, 8)
    net[0].weight, net[1].weight = (nn.Parameter(part) for part in flat)
    sf.prune(net, "element_wise", 0.5, layers="0", tell=len)
    assert flat[1].all() and not flat[0].all()
