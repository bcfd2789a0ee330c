"""Blocks have a graph for the way they are called while their network is traced, before it is."""

import copy

import pytest
import torch
from torch import nn

from sparsefront.inference.fusion.block_pass import fuse_dense
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.tile_wise import TileWise


@pytest.mark.parametrize("batch", [3, 1])
def test_unpadded_batch_is_one_graph(bert, batch):
    """transformers gives attention no mask in eager mode, and one here."""
    pruned = bert(TileWise(32))
    inputs = {"input_ids": torch.randint(0, 8000, (batch, 16)), "attention_mask": torch.ones(batch, 16).long()}
    net = copy.deepcopy(pruned.net)
    assert len(fuse_dense(net, inputs).blocks) == 2
    traced = []

    def count(graph, _):
        traced.append(graph)
        return graph

    compiled = torch.compile(net, backend=count, dynamic=False, fullgraph=True)
    with torch.inference_mode():
        for _ in range(2):
            assert output_error(compiled(**inputs), pruned.net(**inputs)) < 1e-5
    assert len(traced) == 1


class Branching(nn.Module):
    """Chooses by values, which a tracer has not, and keeps what it computes."""

    def __init__(self, by_value):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2))
        self.by_value = by_value

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.last = x
        return -x if self.by_value and x.sum() > 0 else x


@pytest.mark.parametrize("by_value", [True, False])
def test_observed_network_is_unchanged(by_value):
    net, inputs = Branching(by_value).eval(), {"x": torch.randn(3, 5, 16)}
    fused = copy.deepcopy(net)
    assert len(fuse_dense(fused, inputs).blocks) == 2
    assert type(fused.last) is torch.Tensor
    with torch.no_grad():
        assert output_error(fused(**inputs), net(**inputs)) < 1e-5
