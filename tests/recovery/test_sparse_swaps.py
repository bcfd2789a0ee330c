"""Masks of a whole network by exchanges: what each layer sees, what patterns keep, and what is rejected."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
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
    recovery = SparseSwaps(**{"batches": 4, "limit": None} | settings)
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


PATTERNS = {
    "n_m": NM(),
    "permuted": NM(m=8, permutation="search"),
    "uniform": Uniform(),
    "element_wise": ElementWise(),
}


@torch.no_grad()
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_patterns_are_obeyed_and_outputs_come_closer(batches, pattern):
    net, dense = network(), network()
    masks = sf.prune(net, pattern, 0.5, layers=["0", "2"], tell=len)
    x = torch.cat([x for x, _ in batches])
    lost = (net[0](x) - dense[0](x)).square().sum()
    found = swapped(net, masks, batches, dense)
    for name, mask in found.items():
        pattern.check(mask, 0.5, found.spec.permutation(name))
        assert mask.sum() == masks[name].sum() and not torch.equal(mask, masks[name])
    assert (net[0](x) - dense[0](x)).square().sum() < 0.8 * lost


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_any_exchange_that_a_pattern_declares_keeps_it(pattern):
    """What `exchanges_within` promises, for exchanges that no score asked for."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(8, 32, generator=generator)
    mask, order = pattern.mask(scores, 0.5), pattern.find_permutation(scores, 0.5)
    span = pattern.window((8, 32), 0.5).m if pattern.exchanges_within == "window" else 32
    columns = torch.arange(32) if order is None else order.inputs
    for row in range(8):
        inside = columns.reshape(-1, span)[row % (32 // span)]
        kept, pruned = inside[mask[row, inside]], inside[~mask[row, inside]]
        mask[row, kept[0]], mask[row, pruned[-1]] = False, True
    pattern.check(mask, 0.5, order)


def test_rounds_nest(batches):
    net, dense = network(), network()
    masks = sf.prune(net, "element_wise", 0.75, schedule="iterative", layers=["0", "2"], tell=len)
    found = swapped(net, masks, batches, dense, along="finetune", epochs=2)
    assert found.sparsity == pytest.approx(0.75, abs=0.01) and len(found.rounds) == 4
    assert sum(record.steps for record in found.rounds) == 8, "the rounds share the budget"


def test_a_convolution_stays_within_the_masks_of_the_round_before(monkeypatch):
    """Its filter lies tap by tap in the matrix of the mask, and channel by channel in its weight."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 4))
    batches = [(torch.randn(32, 2, 5, 5), torch.randint(0, 4, (32,))) for _ in range(3)]
    masks = sf.prune(net, "element_wise", 0.75, schedule="iterative", layers=["0"], tell=len)
    outside: list[int] = []

    def noted(weight, mask, gram, *, allowed, **more):
        if allowed is not None:
            outside.append(int((mask & ~allowed).sum()))
        return exchange_weights(weight, mask, gram, allowed=allowed, **more)

    monkeypatch.setattr("sparsefront.recovery.sparse_swaps.exchange_weights", noted)
    swapped(net, masks, batches, net, along="finetune", epochs=1)
    assert len(outside) >= 3 and not any(outside)


def test_training_goes_on_from_the_new_masks(batches):
    net, dense = network(), network()
    masks = sf.prune(net, "n_m", 0.5, layers=["0", "2"], tell=len)
    untrained = swapped(network(), masks, batches, dense)
    trained = swapped(net, masks, batches, dense, along="finetune", epochs=3)
    assert all(torch.equal(trained[name], untrained[name]) for name in masks)
    assert trained.rounds[0].steps == 12 and trained.rounds[0].samples == 3 * 128
    assert not net[0].weight[~trained["0"]].any() and not torch.equal(net[0].weight, dense[0].weight * trained["0"])


def test_few_exchanges_are_allowed(batches):
    net, dense = network(), network()
    masks = sf.prune(net, "uniform", 0.5, layers=["0"], tell=len)
    found = swapped(net, masks, batches, dense, limit=1)
    assert ((found["0"] != masks["0"]).sum(1) <= 2).all() and not torch.equal(found["0"], masks["0"])


def test_inputs_that_are_not_finite_are_named(batches):
    batches[0][0][0, 0] = float("inf")
    net, dense = network(), network()
    masks = sf.prune(net, "n_m", 0.5, layers=["0", "2"], tell=len)
    with pytest.raises(InvalidSetting, match="recovery=sparse_swaps: the inputs of 0, .*not finite"):
        swapped(net, masks, batches, dense)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pattern=tile_wise"], "goes with pattern=element_wise, n_m, uniform, not with tile_wise as it is set"),
        (["pattern=uniform", "granularity=2"], "not with uniform as it is set"),
        (["pattern=n_m", "pattern.transposable=true", "sparsity=0.5"], "not with n_m as it is set"),
        (["pattern=vector_wise", "granularity=8"], "recovery=sparse_swaps: exchanges single weights.*not with vector_wise"),
        (["pattern=n_m", "schedule=gradual"], "recovery=sparse_swaps: goes with schedule iterative, one_shot, not with gradual"),
        (["pattern=n_m", "recovery.epochs=3"], "recovery.epochs=3: must be null with along=none"),
        (["pattern=n_m", "recovery.along=lr_rewind", "recovery.lr=0.1"], "recovery.lr=0.1: must be null with along=lr_rewind"),
        (["pattern=n_m", "recovery.along=lr_rewind", "recovery.epochs=99"], "recovery.epochs=99: cannot rewind"),
        (["pattern=n_m", "recovery.limit=0"], "recovery.limit=0: must be"),
        (["pattern=element_wise", "importance=movement", "schedule=iterative", "schedule.levels=[0,0.75]"],
         "importance=movement: comes from training"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_work_is_rejected(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed("recovery=sparse_swaps", *overrides))
