"""Subclasses of Linear and Conv2d that compute something of their own stay dense and keep computing it."""

from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrizations

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import swap_layers
from sparsefront.measure.problems import observe_problems
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.layers import layer_unsupported_reason

CPU = torch.device("cpu")


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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.lora, self.plain = SamePadding(4, 16, 3), Lora(16, 32), NonDynamicallyQuantizableLinear(32, 16)

    def forward(self, x):
        return self.plain(self.lora(self.conv(x).mean((2, 3))))


def test_a_swap_leaves_them_dense_with_the_reason(exported):
    net, x = Net().eval(), torch.randn(2, 4, 5, 5)
    export = exported(net, NM(2, 4), 0.5, ["conv", "lora", "plain"])
    with torch.no_grad():
        expected = net(x)
    problems = observe_problems(net, {"x": x}, ["conv", "lora", "plain"])
    report = swap_layers(net, export, problems, KernelChoice("sparse"), device=CPU, dtype=torch.float32)
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
def test_subclasses_without_a_forward_of_their_own_are_supported(layer):
    assert layer_unsupported_reason(layer) is None


def test_what_one_object_does_of_its_own_counts_too():
    layer = nn.Linear(4, 4)
    layer.forward = MethodType(lambda self, x: 2 * functional.linear(x, self.weight), layer)
    assert "forward of its own" in layer_unsupported_reason(layer)
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    assert "a Linear with forward hooks" in layer_unsupported_reason(layer)
    assert "neither Linear nor Conv2d" in layer_unsupported_reason(nn.Conv1d(4, 4, 3))
    assert layer_unsupported_reason(nn.Conv2d(4, 4, 3, groups=2)) is None
