"""prune on a network of one's own: which layers, which masks, and what is said."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.masks.weight_view import as_matrix


def test_masks_obey_the_pattern_and_weights_are_zeroed_in_place(cnn, capsys):
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


@pytest.mark.parametrize("source", ["example_inputs", "calibration"])
def test_with_inputs_the_order_of_the_calls_counts(cnn, source):
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
def test_scores_that_need_data_get_it(trained, importance):
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


def test_of_tied_weights_as_much_goes_as_was_asked():
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    net[2].weight = net[0].weight
    inputs = [torch.randn(32, 16) * torch.linspace(0.1, 3, 16)]
    masks = sf.prune(net, "element_wise", 0.5, importance="wanda", calibration=inputs, tell=len)
    assert (net[0].weight == 0).float().mean() == masks.sparsity == 0.5


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda net, masks, x, folder: sf.prune(net, "n_m", 0.5), "net"),
        (lambda net, masks, x, folder: sf.recover(net, masks, [x]), "net"),
        (lambda net, masks, x, folder: sf.swap(net, masks, (x,)), "net"),
        (lambda net, masks, x, folder: sf.save(folder, net, masks), "net"),
        (lambda net, masks, x, folder: sf.load(folder, net), "net"),
        (lambda net, masks, x, folder: sf.benchmark(net, nn.Linear(8, 8), (x,)), "dense_net"),
        (lambda net, masks, x, folder: sf.benchmark(nn.Linear(8, 8), net, (x,)), "net"),
    ],
    ids=["prune", "recover", "swap", "save", "load", "benchmark dense", "benchmark"],
)
def test_what_is_no_network_is_told(call, argument, tmp_path):
    with pytest.raises(sf.InvalidSetting, match=f"^{argument}=dict: is a torch.nn.Module$"):
        call({}, {"0": torch.ones(8, 8).bool()}, torch.randn(2, 8), tmp_path)


BAD = {
    "pattern=tile: did you mean tile_2_4 or tile_wise\\? it is one of block_2_4, block_wise, ": {"pattern": "tile"},
    "pattern=dense: takes no weights away": {"pattern": "dense"},
    "granularity=8: pattern=n_m takes no granularity": {"granularity": 8},
    r"granularity=8: give it to TileWise\(...\), not beside pattern=": {
        "pattern": sf.patterns.TileWise(4),
        "granularity": 8,
    },
    r"sparsity=1.0: is the fraction of zeros, in \[0, 1\)": {"sparsity": 1.0},
    "sparsity='half': is the fraction": {"sparsity": "half"},
    r"granularity=1000000000: is larger than every layer; the largest is body \[16, 72\]: at most 16 outputs": {
        "pattern": "tile_wise",
        "granularity": 1_000_000_000,
        "layers": "body",
    },
    r"m=64: is larger than every layer; the largest is mlp \[16, 16\]: at most 16 inputs": {
        "pattern": sf.patterns.NM(m=64),
        "layers": "mlp",
    },
    "sparsity=0.001: rounds to no change: block_wise .* the nearest that prunes is 0.0625": {
        "pattern": sf.patterns.BlockWise(4),
        "sparsity": 0.001,
        "layers": "mlp",
    },
    "importance=taylr: did you mean taylor\\? it is one of fisher, magnitude, ": {"importance": "taylr"},
    "allocation=global_threshold: pattern n_m can meet latency_aware, per_layer": {"allocation": "global_threshold"},
    "calibration=None: importance=wanda comes from inputs: give batches": {"importance": "wanda"},
    "calibration=int: is a DataLoader or another iterable": {"importance": "wanda", "calibration": 3},
    "calibration=empty: must give at least one batch": {"importance": "wanda", "calibration": []},
    "calibration=a function that returns list: opens a loader anew at each call: this one is empty": {
        "importance": "wanda",
        "calibration": lambda: [],
    },
    "calibration=a function that returns NoneType: opens a DataLoader or another iterable of batches": {
        "importance": "wanda",
        "calibration": lambda: None,
    },
    "calibration=list of 3: holds batches": {"importance": "wanda", "calibration": [[1, 2, 3]]},
    "loss=None: may be left out only where the network returns its loss": {
        "importance": "taylor",
        "calibration": [(torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))],
        "layers": ["mlp"],
    },
    r"loss=\[2\]: must be the mean over the batch": {
        "importance": "taylor",
        "calibration": [(torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))],
        "loss": torch.nn.CrossEntropyLoss(reduction="none"),
        "layers": ["mlp"],
    },
    r"layers=body.*: finds no Linear or Conv2d layer; there are head, stem, body, mlp, unused": {"layers": "body.*"},
    "layers=<lambda>: chooses no layer": {"layers": lambda name, module: False},
    "layers=3: is a name, a glob pattern": {"layers": 3},
    "ignore=body: finds none of the layers to prune: mlp": {"layers": "mlp", "ignore": ["body"]},
    "ignore=boby: finds none of the layers to prune: head, body, mlp": {"ignore": {"boby": "it is sensitive"}},
    "ignore=3: is a name, a glob pattern": {"ignore": 3},
    r"example_inputs\['images'\]=int: must be a tensor": {"example_inputs": (3,)},
    "example_inputs=3 tensors: the network's forward names images, scale": {"example_inputs": (torch.ones(1),) * 3},
    r"example_inputs=\(\): holds no tensor": {"example_inputs": ()},
    "pattern=n_m: fits no prunable layer": {"layers": "stem"},
    "importance=movement: .*schedule=one_shot prunes 0.5 before any training": {"importance": "movement"},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_argument_is_one_clear_line_and_changes_nothing(cnn, message):
    before = {name: value.clone() for name, value in cnn.state_dict().items()}
    arguments = {"pattern": "n_m", "sparsity": 0.5, "tell": lambda line: None} | BAD[message]
    with pytest.raises(sf.InvalidSetting, match=message) as caught:
        sf.prune(cnn, **arguments)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())


COMPUTED = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "by a hook": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("norm", COMPUTED.values(), ids=COMPUTED)
def test_a_weight_that_is_computed_is_left_out(norm):
    net = nn.Sequential(norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    masks = sf.prune(net, "element_wise", 0.5, tell=len)
    assert list(masks) == ["2"] and masks.ignored["0"] == "its weight is computed from other parameters"
    with pytest.raises(sf.InvalidSetting, match=r"fits no prunable layer \(0 \[16, 8\]: its weight is computed"):
        sf.prune(net, "element_wise", 0.5, layers="0", tell=len)
    with pytest.raises(sf.InvalidSetting, match=r"masks\['0'\]=given: names a layer whose weight is computed"):
        sf.recover(net, {"0": torch.ones(16, 8).bool()}, [(torch.randn(2, 8), torch.arange(2))], F.cross_entropy)
