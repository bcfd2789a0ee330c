"""Linears with the activation after them in one launch: where that is the same function, and where it is faster."""

import copy

import pytest
import torch
import torch.nn.functional as F
from sparsefront_kernels import KernelEntry, entry
from sparsefront_kernels.epilogue import ACTIVATIONS, with_epilogue
from torch import nn

from sparsefront.data.base import DataInfo
from sparsefront.inference.fusion.block_pass import fuse_dense
from sparsefront.measure import activated_linears
from sparsefront.measure.activated_linears import ActivatedLinear, epilogue_kernels, find_activated, name_activation
from sparsefront.measure.correctness import CorrectnessCheck, output_error
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.measure.timers import KernelTime
from sparsefront.measure.variants import DoesNotApply, make_variant
from sparsefront.models.bert import Bert
from sparsefront.models.vit_small import VitSmall


class ByHand(nn.Module):
    """As GPT-2's, in several operations."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


class Quick(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Clipped(nn.Module):
    """As transformers has it for 8-bit networks."""

    def forward(self, x):
        return F.gelu(x).clamp(-10, 10)


NAMES = {
    "relu": (nn.ReLU(inplace=True), "relu"),
    "exact": (nn.GELU(), "gelu"),
    "tanh": (nn.GELU(approximate="tanh"), "gelu_tanh"),
    "tanh by hand": (ByHand(), "gelu_tanh"),
    "another sigmoid": (Quick(), None),
    "clipped": (Clipped(), None),
    "nothing": (nn.Identity(), None),
    "of rows": (nn.Softmax(dim=-1), None),
    "of images": (nn.MaxPool2d(2), None),
    "SiLU": (nn.SiLU(), None),
}


@pytest.mark.parametrize("name", NAMES)
def test_activation_is_named_by_values(name):
    module, expected = NAMES[name]
    assert name_activation(module) == expected


class MLP(nn.Module):
    def __init__(self, read=lambda h, y: y, act=None, bias=True):
        super().__init__()
        self.up, self.gate = nn.Linear(48, 64, bias=bias), nn.Linear(48, 64, bias=bias)
        self.act, self.read, self.down = act or nn.GELU(), read, nn.Linear(64, 48)

    def forward(self, x):
        h = self.up(x)
        assert h.shape[-1] == 64  # sizes may be read
        return self.down(self.read(h, self.act(h)))


class Gated(MLP):
    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Shared(MLP):
    """One activation module for two Linears, by two names."""

    def __init__(self):
        super().__init__()
        self.again = self.act

    def forward(self, x):
        return self.down(self.act(self.up(x)) + self.again(self.gate(x)))


class Twice(MLP):
    def forward(self, x):
        return self.down(self.act(self.up(x)) + self.act(self.up(2 * x)))


class Changed(MLP):
    def forward(self, x):
        h = self.up(x)
        h.mul_(2)
        return self.down(self.act(h))


class Also(MLP):
    """The activation also reads what no Linear gives."""

    def forward(self, x):
        return self.down(self.act(self.up(x))) + self.act(x)


FUSED = {  # network -> Linears whose activation is fused
    "plain": (MLP, ["up"]),
    "without bias": (lambda: MLP(bias=False), ["up"]),
    "in place": (lambda: MLP(act=nn.ReLU(inplace=True)), ["up"]),
    "gated": (Gated, ["gate"]),
    "shared": (Shared, ["up", "gate"]),
    "sum with its input": (lambda: MLP(lambda h, y: h + y), []),
    "slice of its input": (lambda: MLP(lambda h, y: y + h[..., :1]), []),
    "another function": (lambda: MLP(act=Quick()), []),
    "a function behind": (lambda: MLP(lambda h, y: F.gelu(y)), ["up"]),
    "called twice": (Twice, []),
    "changed between": (Changed, []),
    "also of others": (Also, []),
    "hook": (lambda: with_hook(MLP()), []),
}


def with_hook(net):
    net.act.register_forward_hook(lambda module, args, output: 2 * output)
    return net


class OneLaunch:
    """A dense kernel that runs anywhere; cuBLAS and the activation after it take 2 us."""

    us, scale = 1.0, 1.0

    def __init__(self):
        self.entry = KernelEntry("one_launch", "dense", self.product, fuses_epilogue=True)

    def product(self, x, stored, bias, *, activation="none", residual=None):
        return self.scale * with_epilogue(F.linear(x, stored.values), bias, activation, residual)

    def time(self, layer, x, **settings):
        return KernelTime(self.us if isinstance(layer, ActivatedLinear) else 2.0)


@pytest.fixture
def one_launch(monkeypatch):
    kernel = OneLaunch()
    monkeypatch.setattr(activated_linears, "epilogue_kernels", lambda activation, bias: [kernel.entry])
    monkeypatch.setattr(activated_linears, "time_layer", kernel.time)
    return kernel


@pytest.mark.parametrize("name", FUSED)
def test_only_sole_readers_are_fused(name, one_launch):
    make, layers = FUSED[name]
    net, x = make().eval(), torch.randn(3, 5, 48)
    before, weights = str(net), copy.deepcopy(net.state_dict())
    expected = net(x)
    if not layers:
        with pytest.raises(DoesNotApply, match="no activation module alone reads what a Linear gives"):
            make_variant("fused_epilogue", net, {"x": x})
        return
    fused = make_variant("fused_epilogue", net, {"x": x})
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-5)
    assert [part for part, module in fused.named_modules() if isinstance(module, ActivatedLinear)] == layers
    assert isinstance(fused.act, nn.Identity) and fused.down.weight is net.down.weight and not fused.training
    assert str(net) == before and all(torch.equal(value, weights[key]) for key, value in net.state_dict().items())
    assert fused.get_submodule(layers[0]).format.values.data_ptr() == net.get_submodule(layers[0]).weight.data_ptr()


@pytest.mark.parametrize(
    ("us", "scale", "reason"),
    [
        (3.0, 1.0, r"one_launch: 3.0 us for \[15, 48\] x \[64, 48\], another takes 2.0 us"),
        (1.0, 1.01, "one_launch: relative error 1.0e-02 against the fp64 product"),
    ],
)
def test_slower_or_wrong_kernel(us, scale, reason, one_launch):
    one_launch.us, one_launch.scale = us, scale
    with pytest.raises(DoesNotApply, match=reason):
        make_variant("fused_epilogue", Shared().eval(), {"x": torch.randn(3, 5, 48)})


def test_cpu_has_no_such_kernel():
    with pytest.raises(DoesNotApply, match="dense_sm90: takes float16 or bfloat16.*"):
        make_variant("fused_epilogue", MLP().eval(), {"x": torch.randn(2, 48)})
    assert [kernel.name for kernel in epilogue_kernels("gelu", bias=True)] == ["dense_sm90"]
    assert [kernel.name for kernel in epilogue_kernels("relu", bias=True)] == ["dense_cublaslt", "dense_sm90"]
    assert [kernel.name for kernel in epilogue_kernels("gelu_tanh", bias=False)] == ["dense_sm90"]


MODELS = {
    "bert": lambda: Bert(size="tiny").build(DataInfo("sequence_classification", 64, sequence_length=128)),
    "vit": lambda: VitSmall(dim=256, depth=2).build(DataInfo("image_classification", 10, 28, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_activations_of_the_models_are_found(name):
    net = MODELS[name]().eval()
    inputs = {"x": torch.randn(2, 3, 28, 28)} if name == "vit" else {"input_ids": torch.randint(0, 99, (2, 16))}
    linears = {layer: module for layer, module in net.named_modules() if isinstance(module, nn.Linear)}
    activated = find_activated(net, linears, inputs)
    assert [one.activation for one in activated] == ["gelu", "gelu"]


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
class TestOnGPU:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
    @pytest.mark.parametrize("name", ["dense_cublaslt", "dense_sm90"])
    def test_layer_at_any_number_of_rows(self, name, activation, bias, dtype):
        """Rows that no launch was chosen for, too."""
        linear = nn.Linear(208, 320, bias=bias, device="cuda", dtype=dtype)
        layer = ActivatedLinear(entry(name), linear, activation)
        for rows in (1, 7, 77, 197, 1001, 4099):
            check = CorrectnessCheck(linear, (rows, 208), activation=activation)
            assert check.evaluate(layer)[1] is None, rows
        x = torch.randn(3, 33, 230, device="cuda", dtype=dtype)[..., 11:219]  # unaligned rows
        with torch.inference_mode():
            expected = ACTIVATIONS[activation](copy.deepcopy(linear).double()(x.double()))
            assert output_error(layer(x), expected) < check.limit

    @pytest.fixture(params=MODELS)
    def network(self, request):
        """(network in float16, inputs) on the GPU."""
        inputs = (
            {"x": torch.randn(5, 3, 28, 28).half()}
            if request.param == "vit"
            else {"input_ids": torch.randint(0, 99, (3, 77))}
        )
        return MODELS[request.param]().eval().to("cuda", torch.float16), {name: x.cuda() for name, x in inputs.items()}

    def test_variant_in_every_mode(self, network, monkeypatch):
        """As if one launch were always faster."""
        monkeypatch.setattr(activated_linears, "time_layer", OneLaunch().time)
        net, inputs = network
        fused = make_variant("fused_qkv", make_variant("fused_epilogue", net, inputs), inputs)
        assert sum(isinstance(part, ActivatedLinear) for part in fused.modules()) == 2
        modes = ["eager", "cuda_graph", "compile", "compile_cuda_graph"]
        settings = {"device": torch.device("cuda"), "dtype": torch.float16, "original": net}
        fastest = fastest_execution_mode(fused, inputs, execution_modes=modes, **settings)
        assert fastest.not_timed == {} and set(fastest.medians_ms) == set(modes)

    @pytest.mark.parametrize("layout", ["row_major", "feature_major"])
    def test_fused_graph_times_both(self, network, layout):
        net, inputs = network
        fused = copy.deepcopy(net)
        report = fuse_dense(fused, inputs, layout=layout)
        tried = {one.activation: one.candidates.keys() for block in report.blocks.values() for one in block.products}
        label = entry("dense_sm90").label(layout)
        assert tried == {"none": {"dense_linear"}, "gelu": {"dense_linear", label}}
        with torch.inference_mode():
            assert output_error(fused(**inputs), net(**inputs)) < 5e-3
