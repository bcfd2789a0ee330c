"""Masked and sparse networks agree, and everything that stayed dense says why."""

import copy
import gc
import weakref

import pytest
import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import swap_layers
from sparsefront.measure.correctness import output_error
from sparsefront.measure.problems import observe_problems
from sparsefront.models.bert import Bert
from sparsefront.models.resnet50 import ResNet50
from sparsefront.models.vit_small import VitSmall
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise

CPU, AUTO = torch.device("cpu"), KernelChoice()
PATTERNS = {
    "element_wise": (ElementWise(), "csr_reference"),
    "n_m": (NM(), "n_m_reference"),
    "vector_wise": (VectorWise(8), "gathered_reference"),
    "block_wise": (BlockWise(16), "blocked_reference"),
    "tile_wise": (TileWise(32), "gathered_reference"),
}
IDS = torch.randint(0, 8192, (3, 16), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TOKENS = {"input_ids": IDS, "attention_mask": (IDS > 99).long(), "token_type_ids": torch.zeros_like(IDS)}


@pytest.fixture(scope="module")
def networks():
    """model -> (net, inputs, layers to prune)."""
    torch.manual_seed(0)
    images = DataInfo("image_classification", 10, 16, 3)
    text = DataInfo("sequence_classification", 2, sequence_length=16)
    vit, bert, resnet = VitSmall(dim=64, depth=1), Bert(size="tiny"), ResNet50(small_images=True)
    vit_net, bert_net, resnet_net = vit.build(images).eval(), bert.build(text).eval(), resnet.build(images).eval()
    # a 1x1, a 3x3, a strided 3x3 and a strided 1x1: the other convolutions are like them
    convolutions = ["layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv2", "layer2.0.downsample.0"]
    return {
        "vit_small": (vit_net, {"x": IMAGES}, vit.prunable(vit_net)),
        "bert": (bert_net, TOKENS, bert.prunable(bert_net)),
        "resnet50": (resnet_net, {"x": IMAGES}, convolutions),
    }


def swapped(net, export, inputs, choice=AUTO, prunable=None, dtype=torch.float32):
    problems = observe_problems(net, inputs, prunable or export.manifest.layers)
    return swap_layers(net, export, problems, choice, device=CPU, dtype=dtype)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("model", ["vit_small", "bert", "resnet50"])
def test_masked_and_sparse_outputs_agree(model, pattern, networks, exported):
    net, inputs, layers = networks[model]
    masked, chosen = copy.deepcopy(net), PATTERNS[pattern]
    export = exported(masked, chosen[0], 0.5, layers)
    other = copy.deepcopy(net)
    report = swapped(other, export, inputs)
    with torch.inference_mode():
        assert output_error(other(**inputs), masked(**inputs)) < 1e-5
    assert report.kernels == {chosen[1]: len(layers)}
    assert (report.sparse_layer_share, report.sparse_flops_share, report.dense_layers) == (1.0, 1.0, {})
    assert all(layer.relative_error < 4e-6 and layer.latency_us is None for layer in report.layers.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize(
    ("pattern", "kernel"),
    [
        (TileWise(16), "gathered_triton"),
        (TileWise(16), "gathered_triton_feature_major"),
        (VectorWise(16), "gathered_triton"),
        (BlockWise(16), "blocked_triton"),
        (NM(2, 4), "n_m_rebuilt"),
    ],
    ids=lambda part: part if isinstance(part, str) else part.name,
)
def test_triton_kernels_agree_in_the_interpreter(pattern, kernel, mlp, exported):
    masked, x = mlp(), torch.randn(5, 64)
    export = exported(masked, pattern, 0.5, ["first", "second"])
    other = mlp()
    report = swapped(other, export, {"x": x}, KernelChoice(name=kernel))
    assert report.kernels == {kernel: 2}
    with torch.inference_mode():
        assert output_error(other(x), masked(x)) < 1e-5


class Shared(nn.Module):
    """Two parents and two names, one layer."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Linear(32, 32))
        self.two = nn.ModuleDict({"a": self.one[0], "b": self.one[0]})

    def forward(self, x):
        return self.two["b"](self.two["a"](self.one(x)))


def test_a_shared_layer_is_swapped_once_and_everywhere(exported):
    masked = Shared().eval()
    export = exported(masked, TileWise(8), 0.5, ["one.0"])
    net, x = Shared().eval(), torch.randn(4, 32)
    report = swapped(net, export, {"x": x})
    assert isinstance(net.one[0], SparseLayer)
    assert net.one[0] is net.two["a"] is net.two["b"]
    assert list(report.layers) == ["one.0"]
    with torch.inference_mode():
        assert output_error(net(x), masked(x)) < 1e-5


def test_layers_that_stay_dense_are_listed_and_counted(mlp, exported):
    masked, x = mlp(), torch.randn(10, 64)
    export = exported(masked, TileWise(16), 0.5, ["first"], dense_reasons={"second": "recipe says so"})
    report = swapped(mlp(), export, {"x": x}, prunable=["first", "second"])
    assert report.dense_layers == {"second": "recipe says so"}
    assert (report.sparse_layer_share, report.sparse_flops_share) == (0.5, 0.5)


class Uncalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)
        self.grouped = nn.Conv2d(16, 16, 1, groups=2)

    def forward(self, x):
        return self.used(x) + self.grouped(x[..., None, None])[..., 0, 0]


def test_nothing_is_left_behind_unreported(exported):
    masked, x = Uncalled().eval(), torch.randn(3, 16)
    export = exported(masked, TileWise(8), 0.5, ["used", "unused", "grouped"])
    net = Uncalled().eval()
    report = swapped(net, export, {"x": x})
    assert set(report.layers) == {"used", "unused", "grouped"}
    assert report.dense_layers == {"unused": "the example inputs do not reach it"}
    assert report.layers["grouped"].is_sparse
    with torch.inference_mode():
        assert output_error(net(x), masked(x)) < 1e-5


@pytest.mark.parametrize("choice", [KernelChoice("none"), KernelChoice(family="dense")], ids=str)
def test_masked_dense_swaps_nothing(choice, mlp, exported):
    masked, x = mlp(), torch.randn(4, 64)
    export = exported(masked, TileWise(16), 0.5, ["first", "second"])
    net = mlp()
    report = swapped(net, export, {"x": x}, choice)
    assert not any(isinstance(module, SparseLayer) for module in net.modules())
    assert report.kernels == {"dense_linear": 2} and report.sparse_flops_share == 0.0
    assert all(reason.startswith("kernel=none") for reason in report.dense_layers.values())
    torch.testing.assert_close(net(x), masked(x), rtol=0, atol=0)  # the exported weights, not those it was built with


def test_a_forced_kernel_that_runs_nowhere_is_an_error(mlp, exported):
    export = exported(mlp(), TileWise(16), 0.5, ["first", "second"])
    net = mlp()
    with pytest.raises(InvalidSetting, match="name=semi_structured_reference: runs on none of the pruned layers"):
        swapped(net, export, {"x": torch.randn(4, 64)}, KernelChoice(name="semi_structured_reference"))
    assert not any(isinstance(module, SparseLayer) for module in net.modules())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_dense_weights_are_gone_once_they_are_packed(mlp, exported, pattern):
    net = mlp()
    export = exported(mlp(), PATTERNS[pattern][0], 0.5, ["first", "second"])
    weights = [weakref.ref(net.get_submodule(name).weight) for name in ("first", "second", "head")]
    swapped(net, export, {"x": torch.randn(3, 64)})
    gc.collect()
    first, second, head = (weight() for weight in weights)
    assert first is None and second is None and head is net.head.weight
