"""The swap of layers: every pattern and kind of network computes what it did masked, and what stays dense says why."""

import copy
import gc
import weakref
from dataclasses import dataclass
from types import MethodType

import pytest
import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrizations

from sparsefront.allocation.base import PerLayerAllocation
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.export.checkpoint import read_export, write_export
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import load_sparse, save_choices, swap_layers
from sparsefront.inference.whole_network import keep_dense
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.correctness import output_error
from sparsefront.measure.problems import observe_problems
from sparsefront.models.bert import Bert
from sparsefront.models.resnet50 import ResNet50
from sparsefront.models.vit_small import VitSmall
from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.layers import layer_unsupported_reason
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_spec import MaskSpec, fix_spec

CPU, AUTO = torch.device("cpu"), KernelChoice()
PATTERNS = {
    "element_wise": (ElementWise(), "csr_reference"),
    "n_m": (NM(), "n_m_reference"),
    "n_m-12": (NM(m=12), "n_m_reference"),
    "vector_wise": (VectorWise(8), "gathered_reference"),
    "vector_wise-balanced": (VectorWise(8, "balanced"), "gathered_reference"),
    "block_wise": (BlockWise(4), "blocked_reference"),
    "block_wise-balanced": (BlockWise("8x2", "balanced"), "blocked_reference"),
    "tile_wise": (TileWise(16), "gathered_reference"),
    "tile_wise-apriori": (TileWise(16, apriori_tuning=0.5), "gathered_reference"),
    "channel": (Channel(), "gathered_reference"),
    "channel-inputs": (Channel("inputs"), "gathered_reference"),
    "shuffled_block": (ShuffledBlock(8), "gathered_reference"),
    "n_m-permuted": (NM(2, 4, permutation="search", permutation_rounds=3), "n_m_reference"),
    "n_m-transposable": (NM(transposable=True), "n_m_reference"),
    "uniform": (Uniform(1), "ell_reference"),
    "uniform-4": (Uniform(4), "ell_reference"),
    "tew": (TileWise(16, element_overlay=0.05), "gathered_overlay_reference"),
    "tile_2_4": (Tile24(16), "gathered_2_4_reference"),
    "block_2_4": (Block24(4), "blocked_2_4_reference"),
}


def swapped(net, export, inputs, choice=AUTO, prunable=None, dtype=torch.float32):
    problems = observe_problems(net, inputs, prunable or export.manifest.layers)
    return swap_layers(net, export, problems, choice, device=CPU, dtype=dtype)


class Net(nn.Module):
    """Two convolutions and two Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 48, 3, padding=1)
        self.narrowing = nn.Conv2d(48, 48, (1, 3), stride=2, padding=(0, 1), bias=False)
        self.first, self.second = nn.Linear(48, 96), nn.Linear(96, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.narrowing(self.conv(x).relu()).relu()
        return self.second(self.first(features.mean(dim=(2, 3))).relu())


LAYERS = ("conv", "narrowing", "first", "second")


@dataclass(frozen=True)
class FirstStaysDense(PerLayerAllocation):
    """As erk and latency_aware may have it."""

    def layer_sparsities(self, weight_shapes, sparsity, lost):
        return {layer: 0.0 if layer == "first" else sparsity for layer in weight_shapes}


def pruned(pattern, allocation: PerLayerAllocation) -> tuple[Net, dict[str, torch.Tensor], MaskSpec]:
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    weights = {name: as_matrix(net.get_submodule(name).weight) for name in LAYERS}
    scores = {name: weight.abs() for name, weight in weights.items()}
    spec = fix_spec(scores, pattern, allocation, 0.5)
    masks = make_masks(scores, pattern, allocation, 0.5, spec=spec)
    for name, mask in masks.items():
        weight = net.get_submodule(name).weight
        weight.mul_(like_weight(mask, weight))
    return net, masks, spec


@pytest.fixture(params=PATTERNS)
def case(request, tmp_path):
    """(masked net, its export, name of the reference)."""
    pattern, kernel = PATTERNS[request.param]
    net, masks, spec = pruned(pattern, PerLayer())
    write_export(
        tmp_path, net, masks, pattern=pattern, sparsity=0.5, permutations=spec.permutations, sparsities=spec.sparsities
    )
    return net, read_export(tmp_path), kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sparse_network_computes_the_masked_one(case, dtype):
    masked, export, kernel = case
    x, net = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(1)), Net().eval()
    weights = [weakref.ref(net.get_submodule(name).weight) for name in LAYERS]
    report = swapped(net, export, {"x": x}, dtype=dtype)
    assert report.kernels == {kernel: len(LAYERS)}
    assert (report.sparse_layer_share, report.sparse_flops_share, report.dense_layers) == (1.0, 1.0, {})
    errors = [layer.relative_error for layer in report.layers.values()]
    assert max(errors) < (4e-6 if dtype == torch.float32 else 5e-3)
    assert all(layer.latency_us is None for layer in report.layers.values())
    if dtype == torch.float32:
        gc.collect()
        assert all(weight() is None for weight in weights), "dense weights are gone once they are packed"
    with torch.inference_mode():
        limit = 1e-5 if dtype == torch.float32 else 3e-2
        assert output_error(net(x.to(dtype)), masked(x)) < limit
        copied = copy.deepcopy(net)
        torch.testing.assert_close(copied(x.to(dtype)), net(x.to(dtype)), rtol=0, atol=0)
    for name in LAYERS:
        layer = net.get_submodule(name)
        assert isinstance(layer, SparseLayer)
        assert torch.equal(layer.weight, masked.get_submodule(name).weight.to(dtype))


def test_permuted_2_4_on_tensor_cores(tmp_path):
    """On a CPU their reference stands in: 2:4 is found in the order that the export holds, and only there."""
    pattern = PATTERNS["n_m-permuted"][0]
    masked, masks, spec = pruned(pattern, PerLayer())
    assert spec.permutations
    write_export(tmp_path, masked, masks, pattern=pattern, sparsity=0.5, permutations=spec.permutations)
    x, net = torch.randn(3, 4, 6, 6), Net().eval()
    report = swapped(net, read_export(tmp_path), {"x": x}, KernelChoice(family="semi_structured"))
    assert report.kernels == {"semi_structured_reference": len(LAYERS)}
    assert net.first.format.input_order is not None
    with torch.inference_mode():
        assert output_error(net(x), masked(x)) < 1e-5


@pytest.mark.parametrize("name", ["shuffled_block", "n_m-permuted", "uniform", "tew"])
def test_layer_of_sparsity_0(tmp_path, name):
    pattern, _ = PATTERNS[name]
    masked, masks, spec = pruned(pattern, FirstStaysDense())
    fixed = {"permutations": spec.permutations, "sparsities": spec.sparsities}
    write_export(tmp_path, masked, masks, pattern=pattern, sparsity=0.5, **fixed)
    export = read_export(tmp_path)
    assert export.manifest.layers["first"].family == "dense" != export.manifest.layers["second"].family
    for layer in LAYERS:
        assert torch.equal(export.format(layer).to_dense(), as_matrix(masked.get_submodule(layer).weight))


# Networks of every kind.

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


@pytest.mark.parametrize(
    ("model", "pattern"), [("vit_small", TileWise(32)), ("bert", ElementWise()), ("resnet50", NM())]
)
def test_networks_agree(model, pattern, networks, exported):
    net, inputs, layers = networks[model]
    masked, other = copy.deepcopy(net), copy.deepcopy(net)
    report = swapped(other, exported(masked, pattern, 0.5, layers), inputs)
    with torch.inference_mode():
        assert output_error(other(**inputs), masked(**inputs)) < 1e-5
    assert report.sparse_layer_share == report.sparse_flops_share == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize(
    ("pattern", "kernel"),
    [(TileWise(16), "gathered_triton_feature_major"), (BlockWise(16), "blocked_triton"), (NM(2, 4), "n_m_rebuilt")],
    ids=lambda part: part if isinstance(part, str) else part.name,
)
def test_triton_kernels_agree_in_the_interpreter(pattern, kernel, mlp, exported):
    masked, other, x = mlp(), mlp(), torch.randn(5, 64)
    report = swapped(other, exported(masked, pattern, 0.5, ["first", "second"]), {"x": x}, KernelChoice(name=kernel))
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


def test_shared_layer_is_swapped_everywhere(exported):
    masked = Shared().eval()
    export = exported(masked, TileWise(8), 0.5, ["one.0"])
    net, x = Shared().eval(), torch.randn(4, 32)
    report = swapped(net, export, {"x": x})
    assert isinstance(net.one[0], SparseLayer)
    assert net.one[0] is net.two["a"] is net.two["b"]
    assert list(report.layers) == ["one.0"]
    with torch.inference_mode():
        assert output_error(net(x), masked(x)) < 1e-5


def test_dense_layers_are_listed_and_counted(mlp, exported):
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


def test_forced_kernel_has_to_run_somewhere(mlp, exported):
    export = exported(mlp(), TileWise(16), 0.5, ["first", "second"])
    net = mlp()
    with pytest.raises(InvalidSetting, match="name=semi_structured_reference: runs on none of the pruned layers"):
        swapped(net, export, {"x": torch.randn(4, 64)}, KernelChoice(name="semi_structured_reference"))
    assert not any(isinstance(module, SparseLayer) for module in net.modules())


# Subclasses of Linear and Conv2d that compute something of their own.


class Lora(nn.Linear):
    """A second product beside the first."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(4, inputs)), nn.Parameter(torch.randn(outputs, 4))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


class SamePadding(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(functional.pad(x, (1, 1, 1, 1)), weight, bias)


class Subclasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.lora, self.plain = SamePadding(4, 16, 3), Lora(16, 32), NonDynamicallyQuantizableLinear(32, 16)

    def forward(self, x):
        return self.plain(self.lora(self.conv(x).mean((2, 3))))


def test_own_forward_stays_dense(exported):
    net, x = Subclasses().eval(), torch.randn(2, 4, 5, 5)
    export = exported(net, NM(2, 4), 0.5, ["conv", "lora", "plain"])
    with torch.no_grad():
        expected = net(x)
    report = swapped(net, export, {"x": x}, KernelChoice("sparse"))
    assert [type(layer) for layer in (net.conv, net.lora)] == [SamePadding, Lora] and report.layers["plain"].is_sparse
    assert "a Lora with a forward of its own" in report.dense_layers["lora"]
    assert "a SamePadding with a _conv_forward of its own" in report.dense_layers["conv"]
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 4), nn.Conv2d(4, 4, 3), NonDynamicallyQuantizableLinear(4, 4)]
    + [parametrizations.weight_norm(nn.Linear(4, 4))],
    ids=lambda layer: type(layer).__name__,
)
def test_other_subclasses_are_supported(layer):
    assert layer_unsupported_reason(layer) is None


def test_own_forward_of_one_object_counts():
    layer = nn.Linear(4, 4)
    layer.forward = MethodType(lambda self, x: 2 * functional.linear(x, self.weight), layer)
    assert "forward of its own" in layer_unsupported_reason(layer)
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    assert "a Linear with forward hooks" in layer_unsupported_reason(layer)
    assert "neither Linear nor Conv2d" in layer_unsupported_reason(nn.Conv1d(4, 4, 3))
    assert layer_unsupported_reason(nn.Conv2d(4, 4, 3, groups=2)) is None


# Where a swapped network is slower as a whole, the masked one runs.


def test_undone_swap_reports_every_layer(mlp, exported, tmp_path):
    net, inputs = mlp(), {"x": torch.randn(8, 64)}
    export = exported(net, TileWise(32), 0.5, ["first", "second"])
    masked = mlp()
    masked.load_state_dict(net.state_dict())
    report = swapped(net, export, inputs)
    assert report.sparse_flops_share == 1
    kept = keep_dense(report, masked, "it is slower")
    assert kept.kernels == {"dense_linear": 2} and kept.sparse_layer_share == kept.sparse_flops_share == 0
    assert kept.dense_layers == {"first": "it is slower", "second": "it is slower"}
    assert kept.layers["first"].weight_bytes == 64 * 96 * 4
    save_choices(kept, tmp_path / "export")
    loaded = mlp()
    load_sparse(loaded, tmp_path / "export", inputs, device=CPU, dtype=torch.float32)
    assert type(loaded.first) is type(loaded.second) is nn.Linear
    assert torch.equal(loaded(**inputs), masked(**inputs))
