"""prune on a network of one's own: which layers, which masks, and what is said."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.masks.weight_view import as_matrix


def test_weights_are_zeroed_in_place(cnn, capsys):
    before = {name: layer.weight.detach().clone() for name, layer in cnn.named_modules() if hasattr(layer, "weight")}
    inputs = (torch.randn(2, 3, 8, 8),)
    masks = sf.prune(cnn, pattern="vector_wise", sparsity=0.75, granularity=4, example_inputs=inputs)
    assert list(masks) == ["body", "mlp"] and isinstance(masks, dict)
    for name, mask in masks.items():
        weight = cnn.get_submodule(name).weight
        assert mask.dtype == torch.bool and mask.shape == weight.shape
        assert torch.equal(weight, torch.where(mask, before[name], 0.0))
        sf.patterns.VectorWise(4).check(as_matrix(mask), 0.75)
    assert torch.equal(cnn.head.weight, before["head"])
    assert masks.sparsity == pytest.approx(0.75, abs=0.02)
    assert capsys.readouterr().out == (
        "prune: vector_wise at 0.75 in 2 layers; left out: unused (the example inputs do not reach it); "
        "stem (the first convolution, which reads the input); head (the head, which gives the network's output)\n"
        "prune: 75.0% of the weights in 2 layers are zero, 62.6% of all in the network\n"
    )


def test_missed_sparsity_is_said(capsys):
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    masks = sf.prune(net, "tile_wise", 0.5, granularity=32, layers="*")
    zeros = 1 - sum(int(mask.sum()) for mask in masks.values()) / 2048
    assert abs(zeros - 0.5) > 0.02 and f"{zeros:.1%} of the weights in 2 layers are zero where 50.0% was asked for" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("source", ["example_inputs", "calibration"])
def test_order_of_the_calls_counts(cnn, source):
    images = torch.randn(2, 3, 8, 8)
    given = {"example_inputs": (images,)} if source == "example_inputs" else {"calibration": [(images,)]}
    masks = sf.prune(cnn, "element_wise", 0.5, tell=lambda line: None, **given)
    assert list(masks) == ["body", "mlp"]
    assert masks.ignored == {
        "unused": "the example inputs do not reach it",
        "stem": "the first convolution, which reads the input",
        "head": "the head, which gives the network's output",
    }


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("mlp", ["mlp"]),
        (["mlp", "body"], ["body", "mlp"]),
        (["*"], ["head", "stem", "body", "mlp", "unused"]),
        (lambda name, module: isinstance(module, nn.Conv2d), ["stem", "body"]),
    ],
    ids=["a name", "names", "a pattern", "a predicate"],
)
def test_layers_are_chosen(cnn, layers, expected):
    masks = sf.prune(cnn, "element_wise", 0.5, layers=layers, tell=lambda line: None)
    assert list(masks) == expected and masks.ignored == {}


@pytest.mark.parametrize("importance", ["taylor", "fisher", "wanda", "obs", "random"])
def test_scores_that_need_data(trained, importance):
    net = trained.net()
    masks = sf.prune(
        net,
        "element_wise",
        0.5,
        importance=importance,
        calibration=trained.loader,
        loss=F.cross_entropy,
        tell=lambda line: None,
    )
    assert masks.sparsity == pytest.approx(0.5, abs=1e-3)
    assert masks.pruning.importance.name == importance


def test_tied_weights_lose_what_is_asked():
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    net[2].weight = net[0].weight
    inputs = [torch.randn(32, 16) * torch.linspace(0.1, 3, 16)]
    masks = sf.prune(net, "element_wise", 0.5, importance="wanda", calibration=inputs, tell=len)
    assert (net[0].weight == 0).float().mean() == masks.sparsity == 0.5


COMPUTED = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "by a hook": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("norm", COMPUTED.values(), ids=COMPUTED)
def test_computed_weight_is_left_out(norm):
    net = nn.Sequential(norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    masks = sf.prune(net, "element_wise", 0.5, tell=len)
    assert list(masks) == ["2"] and masks.ignored["0"] == "its weight is computed from other parameters"
    with pytest.raises(sf.InvalidSetting, match=r"fits no prunable layer \(0 \[16, 8\]: its weight is computed"):
        sf.prune(net, "element_wise", 0.5, layers="0", tell=len)
    with pytest.raises(sf.InvalidSetting, match=r"masks\['0'\]=given: names a layer whose weight is computed"):
        sf.recover(net, {"0": torch.ones(16, 8).bool()}, [(torch.randn(2, 8), torch.arange(2))], F.cross_entropy)
