"""A pair of networks timed side by side."""

import pytest
import torch
from torch import nn

from sparsefront.measure.end_to_end import time_pair
from sparsefront.measure.settings import Measure


class Layers(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_both_sides_keep_all_samples_of_all_repeats():
    settings = Measure(device="cpu", samples=6, repeats=2, warmup=1)
    found = time_pair(Layers(12).eval(), Layers(1).eval(), {"x": torch.randn(256, 128)}, settings)
    assert {side: [len(repeat) for repeat in repeats] for side, repeats in found.samples_ms.items()} == {
        "dense": [6, 6],
        "sparse": [6, 6],
    }
    assert found.dense.n == found.sparse.n == 12
    assert found.speedup.speedup > 1  # a twelfth of the layers
    assert found.throughput_sparse_samples_per_s == pytest.approx(256 / found.sparse.median_ms * 1e3)
    assert found.wrapping_dense.name == found.wrapping_sparse.name == "eager"
    assert found.wrapping_refusals["sparse/cuda_graph"] == "needs a CUDA device"


@pytest.mark.gpu
def test_graphs_beat_eager_on_small_layers():
    settings = Measure(device="cuda", samples=10)
    nets = (Layers(12).eval().to("cuda", torch.float16) for _ in range(2))
    found = time_pair(*nets, {"x": torch.randn(32, 128, device="cuda", dtype=torch.float16)}, settings)
    assert found.wrapping_refusals == {}
    assert found.wrapping_dense.medians_ms["cuda_graph"] < found.wrapping_dense.medians_ms["eager"]
