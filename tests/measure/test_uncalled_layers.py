"""Weights that another module multiplies are seen, by whichever operator it does so."""

import pytest
import torch
from torch import nn

from sparsefront.measure.problems import UncalledLayers


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.unused = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("training", [True, False], ids=["training", "fast path"])
@pytest.mark.parametrize("no_gradients", [torch.no_grad, torch.inference_mode])
def test_a_projection_of_attention(training, no_gradients):
    net = Attention().train(training)
    with no_gradients(), UncalledLayers(net, ["attention.out_proj", "unused"]) as uncalled:
        net(torch.randn(2, 5, 16))
    assert list(uncalled.problems) == ["attention.out_proj"]
    problem = uncalled.problems["attention.out_proj"]
    assert (problem.m, problem.k, problem.n, problem.dtype) == (10, 16, 16, torch.float32)


def test_the_largest_product_counts():
    conv = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3)})
    with torch.inference_mode(), UncalledLayers(conv, ["conv"]) as uncalled:
        for size in (4, 6, 5):
            nn.functional.conv2d(torch.randn(2, 3, size, size), conv["conv"].weight)
    assert (uncalled.problems["conv"].m, uncalled.problems["conv"].k) == (2 * 4 * 4, 27)
