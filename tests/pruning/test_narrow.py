"""Whole heads and hidden features go in all layers that share them, and a narrower dense network of the same function is left."""

import copy

import pytest
import torch
from tied_networks import NETWORKS, OTHERS
from torch import nn

import sparsefront as sf
from experiments.networks.networks import NETWORKS as MANY
from experiments.networks.table import outputs
from sparsefront.errors import InvalidSetting
from sparsefront.measure.correctness import output_error
from sparsefront.models.linears import as_linears
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.ties import find_ties

WIDTH = Channel(axis="width")


def prunable(net: nn.Module) -> list[str]:
    return sorted({layer for tie in find_ties(net, sf_layers(net)) for layer in tie.layers})


def sf_layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]


CROSSING = {  # networks whose products that cross blocks, or read the first convolution, go too
    "SAM, encoder": "hidden",
    "ConvNeXt, timm": "hidden",
    **dict.fromkeys(("Whisper, encoder", "MobileNetV3", "EfficientNet", "ConvNeXt"), "all"),
}
UNTIED = {  # parts of names of layers that stay, whose units are read by the head, a norm or a first convolution
    "Gated": ("first",),
    "ELECTRA": ("embeddings_project",),
    "ALBERT": ("embedding_hidden_mapping_in",),
    "Swin": ("reduction",),
    "SAM, encoder": ("neck.conv2",),
    "MobileNetV2": ("features.1.conv.1",),
}
UNSUPPORTED = ("LSTM", "depends on values")  # its gates are ordered by state; its graph cannot be traced
LEFT = {0.25: 0.8, 0.5: 0.6}


def product_flops(net: nn.Module, inputs: object) -> int:
    """Multiplications by weights in one forward."""
    products: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda layer, _, y: products.append(y.numel() * layer.weight[0].numel()))
        for layer in net.modules()
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
    ]
    outputs(net, inputs)
    for hook in hooks:
        hook.remove()
    return sum(products)


@pytest.mark.parametrize(
    ("name", "sparsity"),
    [
        *((name, (0.25, 0.5)[at % 2]) for at, name in enumerate(sorted(OTHERS | MANY)) if name not in CROSSING),
        *((name, sparsity) for name in CROSSING for sparsity in LEFT),
    ],
)
def test_ties_of_many_networks(name, sparsity):
    torch.manual_seed(0)
    tiny = (OTHERS | MANY)[name]
    net, inputs = tiny.make().eval(), tiny.inputs()
    as_linears(net)
    for norm in (part for part in net.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.normal_(norm.bias), nn.init.normal_(norm.running_mean)
    if name in UNSUPPORTED:
        with pytest.raises(InvalidSetting, match="fits no prunable layer .*its graph cannot be traced"):
            sf.prune(net, WIDTH, sparsity, example_inputs=inputs)
        return
    flops = product_flops(net, inputs)
    axis = CROSSING.get(name, "width")
    masks = sf.prune(net, Channel(axis), sparsity, example_inputs=inputs, tell=len)
    untied = [layer for layer, why in masks.ignored.items() if "no tied layers found" in why]
    assert all(any(part in layer for part in UNTIED.get(name, ())) for layer in untied), untied
    assert masks.sparsity == pytest.approx(sparsity, abs=0.02 if name not in CROSSING else 0.03)
    expected, count = outputs(net, inputs), sum(p.numel() for p in net.parameters())
    sf.narrow(net, masks)
    assert output_error(outputs(net, inputs), expected) <= 1e-5
    assert sum(p.numel() for p in net.parameters()) < count - 0.9 * sum(int((~mask).sum()) for mask in masks.values())
    assert product_flops(net, inputs) <= LEFT[sparsity] * flops


@pytest.mark.parametrize(("name", "multiple"), [("BERT", 8), ("BERT", 64), ("Llama", 16), ("MobileNetV2", 8)])
def test_widths_are_multiples(name, multiple):
    torch.manual_seed(0)
    tiny = (OTHERS | MANY)[name]
    net, inputs = tiny.make().eval(), tiny.inputs()
    before = [parameter.shape for parameter in net.parameters()]
    masks = sf.prune(net, Channel("width", multiple_of=multiple), 0.4, example_inputs=inputs, tell=len)
    expected = outputs(net, inputs)
    assert sf.narrow(net, masks).layers and 0.2 < masks.sparsity <= 0.5
    assert output_error(outputs(net, inputs), expected) <= 1e-5
    changed = {
        new
        for old, parameter in zip(before, net.parameters(), strict=True)
        for new, side in zip(parameter.shape, old, strict=True)
        if new < side
    }
    assert changed and all(width % multiple == 0 for width in changed)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "MobileNetV2", "Swin", "T5", "Phi-3", "DeepLabV3"])
def test_narrowed_networks_are_pruned_and_loaded(name, tmp_path):
    torch.manual_seed(0)
    tiny = (OTHERS | MANY)[name]
    net, inputs = tiny.make().eval(), tiny.inputs()
    whole = copy.deepcopy(net)
    before = sf.prune(net, WIDTH, 0.5, example_inputs=inputs, tell=len)
    narrowed = sf.narrow(net, before)
    with pytest.raises(InvalidSetting, match="masks from before sf.narrow do not fit any more"):
        sf.save(tmp_path, net, before)
    masks = sf.prune(net, "element_wise", 0.5, example_inputs=inputs, tell=len)
    sf.save(tmp_path, net, masks)
    sf.load(tmp_path, whole)
    assert output_error(outputs(whole, inputs), outputs(net, inputs)) == 0
    assert (narrowed.not_in_config is None) == (name in ("Llama", "Phi-3"))
    if name in ("Llama", "Phi-3"):
        again = type(net).from_pretrained(tmp_path).eval()
        assert output_error(outputs(again, inputs), outputs(net, inputs)) == 0


@pytest.mark.parametrize(
    ("family", "allocation"),
    [*((family, "per_layer") for family in NETWORKS), ("bert", "global_threshold"), ("resnet", "global_threshold")],
)
def test_narrower_network_is_the_masked_one(family, allocation):
    torch.manual_seed(0)
    make, inputs = NETWORKS[family]
    net = make().eval()
    pattern = WIDTH if allocation == "per_layer" else Channel(axis="width", aggregate="rms")
    masks = sf.prune(net, pattern, 0.5, layers=prunable(net), allocation=allocation, tell=lambda line: None)
    assert masks.sparsity == pytest.approx(0.5, abs=0.03 if allocation == "per_layer" else 1 / 16)  # a head at most
    before, wide = sum(p.numel() for p in net.parameters()), copy.deepcopy(net)
    report = sf.swap(net, masks, inputs)  # raises where outputs differ by more than rounding
    gone = sum(int((~mask).sum()) for mask in masks.values())
    assert sum(p.numel() for p in net.parameters()) <= before - gone
    assert report.sparse_flops_share is None and "narrower dense layer" in str(report)
    narrowed = sf.narrow(wide, masks)
    assert set(narrowed.layers) == set(report.dense_layers) & set(narrowed.layers) and narrowed.layers
    assert [p.shape for p in wide.parameters()] == [p.shape for p in net.parameters()]


def test_lowest_score_of_tied_weights_goes():
    net = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1], [2, 2], [0, 0], [3, 3]]))
        net[2].weight.copy_(torch.tensor([[1.0, 0, 9, 3], [1, 0, 9, 3]]))
    masks = sf.prune(net, WIDTH, 0.5, layers=["0", "2"], tell=lambda line: None)
    assert masks["0"].any(dim=1).tolist() == [False, False, True, True]
    assert masks["2"].any(dim=0).tolist() == [False, False, True, True]


def test_export_of_a_narrower_network(tmp_path):
    torch.manual_seed(0)
    make, inputs = NETWORKS["bert"]
    net = make().eval()
    masks = sf.prune(net, WIDTH, 0.5, layers=prunable(net), tell=lambda line: None)
    sf.save(tmp_path / "export", net, masks)
    expected = net(**inputs).logits
    loaded = make().eval()
    read = sf.load(tmp_path / "export", loaded)
    sf.narrow(loaded, read)
    assert loaded.bert.encoder.layer[0].attention.self.query.weight.shape == (16, 32)
    assert torch.allclose(loaded(**inputs).logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    "net",
    [nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4)), nn.ModuleDict({"a": nn.Linear(4, 4)})],
    ids=["mixes features", "no block"],
)
def test_network_without_tied_layers(net):
    with pytest.raises(InvalidSetting, match="pattern=channel: fits no prunable layer .*no tied layers found"):
        sf.prune(net, WIDTH, 0.5, layers=lambda name, module: True)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sparsity": 0.005}, r"sparsity=0.005: rounds to no change: the smallest share of a layer that goes is"),
        ({"sparsity": 0.05, "pattern": Channel("width", multiple_of=64)}, "rounds to no change: .* a multiple of 64"),
        (
            {"sparsity": 0.5, "allocation": "global_threshold", "pattern": Channel("width", multiple_of=8)},
            "allocation=global_threshold: pattern channel can meet .*per_layer.* their widths are then no multiples",
        ),
        ({"sparsity": 0.5, "allocation": "erk"}, "allocation=erk: pattern channel can meet .*per_layer"),
    ],
)
def test_refusals_of_width(settings, message):
    net = NETWORKS["bert"][0]()
    with pytest.raises(InvalidSetting, match=message):
        sf.prune(net, layers=prunable(net), **{"pattern": WIDTH} | settings)
    with pytest.raises(InvalidSetting, match="multiple_of=8: is of widths"):
        Channel(multiple_of=8)
