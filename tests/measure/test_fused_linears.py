"""Linear layers that read the same tensor, as one product: the same network, whatever else it does."""

import copy

import pytest
import torch
from torch import nn

from sparsefront.data.base import DataInfo
from sparsefront.measure.correctness import output_error
from sparsefront.measure.variants import FusedLinears, FusedPart, fuse_linears, shared_input_linears
from sparsefront.models.attention import SelfAttention
from sparsefront.models.bert import Bert
from sparsefront.models.vit import Vit
from sparsefront.models.vit_small import VitSmall


class Encoder(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.blocks = nn.ModuleList(SelfAttention(16, 2, bias=bias) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def x():
    return torch.randn(3, 5, 16)


@pytest.mark.parametrize("bias", [True, False])
def test_an_attention_multiplies_once_for_q_k_and_v(x, bias):
    net = Encoder(bias).eval()
    before = copy.deepcopy(net.state_dict())
    fused = fuse_linears(net, x=x)
    torch.testing.assert_close(fused(x), net(x))
    parts = [module for module in fused.modules() if isinstance(module, FusedPart)]
    assert len(parts) == 6 and len({part.fused for part in parts}) == 2
    assert fused.blocks[0].out.weight is net.blocks[0].out.weight  # the rest is shared
    assert isinstance(net.blocks[0].q, nn.Linear)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


NETWORKS = {
    "bert": (Bert(size="tiny"), DataInfo("sequence_classification", 2, sequence_length=16), "attention.self.query"),
    "vit_small": (VitSmall(dim=64, depth=2), DataInfo("image_classification", 10, 16, 3), "attn.q"),
    "vit": (Vit(), DataInfo("image_classification", 10, 32, 3), "self_attention.q"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_models_attentions_are_found(name):
    model, info, query = NETWORKS[name]
    net = model.build(info).eval()
    ids = torch.randint(0, 99, (2, 16))
    inputs = {"x": torch.randn(2, 3, info.image_size, info.image_size)} if info.image_size else {"input_ids": ids}
    groups = shared_input_linears(net, **inputs)
    layers = [layer for layer in model.prunable(net) if layer.endswith(query)]
    assert [group[0] for group in groups] == layers and {len(group) for group in groups} == {3}
    with torch.inference_mode():
        assert output_error(fuse_linears(net, **inputs)(**inputs), net(**inputs)) < 1e-5


def test_nothing_outlives_a_forward_pass(x):
    fused = fuse_linears(Encoder().eval(), x=x)
    fused(x)
    products = [module for module in fused.modules() if isinstance(module, FusedLinears)]
    assert all(product._input is None and product._outputs == () for product in products)


class Changed(nn.Module):
    """The tensor is the same object with other values at the second layer; a third reads it in another order."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, swap=False):
        x = x.clone()
        first, third = (self.three(x), self.one(x)) if swap else (self.one(x), self.three(x))
        x.mul_(2)
        return first + 2 * third + 3 * self.two(x)


def test_a_tensor_that_was_changed_in_between_is_another_input(x):
    net = Changed().eval()
    assert shared_input_linears(net, x=x) == [["one", "three"]]
    fused = fuse_linears(net, x=x)
    torch.testing.assert_close(fused(x), net(x))
    torch.testing.assert_close(fused(x, swap=True), net(x, swap=True))  # not the order that was watched


@pytest.mark.parametrize("kind", ["called twice", "hook", "subclass"])
def test_layers_that_do_more_are_left_alone(x, kind):
    class Own(nn.Linear):
        pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(16, 4), (Own if kind == "subclass" else nn.Linear)(16, 4)
            if kind == "hook":
                self.two.register_forward_hook(lambda module, arguments, output: 2 * output)

        def forward(self, x):
            return self.one(x) + self.two(x) + (self.two(x) if kind == "called twice" else 0)

    assert fuse_linears(Net().eval(), x=x) is None


@pytest.mark.gpu
def test_it_is_replayed_from_a_graph_with_new_values():
    from sparsefront.measure.execution_mode import fastest_execution_mode

    device, dtype = torch.device("cuda"), torch.float16
    net = Encoder().eval().to(device, dtype)
    inputs = {"x": torch.randn(3, 5, 16, device=device, dtype=dtype)}
    fused = fuse_linears(net, **inputs)
    modes = ["eager", "cuda_graph", "compile", "compile_cuda_graph"]
    found = fastest_execution_mode(fused, inputs, execution_modes=modes, device=device, dtype=dtype, original=net)
    assert found.not_timed == {} and set(found.medians_ms) == set(modes)
