"""Workarounds for PyTorch: its fast path of encoder layers, and messages of its compiler that double with each block."""

import pytest
import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import swap_layers
from sparsefront.measure.correctness import output_error
from sparsefront.measure.problems import observe_problems
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.layers import explain_nested

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self, *, nested):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        return self.head(self.encoder(x))


def swapped(net, inputs, exported, **choice):
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    export = exported(net, NM(2, 4), 0.5, layers)
    problems = observe_problems(net, inputs, layers)
    return swap_layers(
        net, export, problems, KernelChoice("sparse", **choice), device=CPU, dtype=torch.float32, inputs=inputs
    )


@pytest.mark.parametrize("fuse", [True, False])
def test_the_layers_that_are_reported_run(fuse, exported, monkeypatch):
    net, x = Net(nested=False).eval(), torch.randn(2, 5, 32)
    report = swapped(net, {"x": x}, exported, fuse=fuse)
    ran, product = [], SparseLayer.product
    names = {module: name for name, module in net.named_modules()}
    # no hooks: PyTorch leaves the fast path where there are any
    monkeypatch.setattr(SparseLayer, "product", lambda layer, x: ran.append(names[layer]) or product(layer, x))
    with torch.inference_mode():
        output = net(x)
        for block in net.encoder.layers:
            block.activation_relu_or_gelu = 1  # the fast path again, with the same weights
        assert output_error(output, net(x)) < 1e-5
    sparse = [name for name, layer in report.layers.items() if layer.is_sparse]
    assert len(sparse) == 5 and ran == [*sparse, "head"]
    assert {name for name in report.dense_layers if name.endswith("out_proj")} == set(report.layers) - set(sparse)
    if fuse:
        assert len(report.fusion.unsupported) == 2
        assert all("self_attn.out_proj without a call" in reason for reason in report.fusion.unsupported.values())


def test_layers_of_nested_tensors(exported):
    net, x = Net(nested=True).eval(), torch.randn(2, 5, 32)
    report = swapped(net, {"x": x}, exported)
    assert [name for name, layer in report.layers.items() if layer.is_sparse] == ["head"]
    assert "build it with enable_nested_tensor=False" in report.dense_layers["encoder.layers.0.linear1"]
    assert all(block.activation_relu_or_gelu for block in net.encoder.layers)
    alone = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1)
    assert explain_nested(alone, "layers.0.linear2") and not explain_nested(net, "head")
