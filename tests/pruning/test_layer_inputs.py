"""The matrices that layers multiply: the product with the weight must be what the layer computes."""

import pytest
import torch
from torch import nn

from sparsefront.masks.weight_view import as_matrix
from sparsefront.pruning.calibration import as_rows, in_order_of_use, sum_over_inputs

CONVOLUTIONS = {
    "pointwise": {"kernel_size": 1},
    "padded": {"kernel_size": 3, "padding": 1},
    "strided": {"kernel_size": 3, "stride": 2, "padding": (0, 1)},
    "rectangular": {"kernel_size": (2, 3), "stride": (1, 2)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1), "padding": 2},
    "same": {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "circular": {"kernel_size": 3, "padding": (1, 2), "padding_mode": "circular"},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_rows_of_a_convolution(settings):
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 5, bias=False, **settings), torch.randn(2, 3, 9, 8)
    product = as_rows(conv, x) @ as_matrix(conv.weight).t()
    torch.testing.assert_close(product, conv(x).permute(0, 2, 3, 1).flatten(0, 2), rtol=1e-4, atol=1e-5)


def test_padding_is_no_row():
    layer, x = nn.Linear(4, 5), torch.randn(2, 3, 4)
    real = torch.tensor([[True, True, False], [True, False, False]])
    expected = torch.stack([x[0, 0], x[0, 1], x[1, 0]])
    assert torch.equal(as_rows(layer, x, real), expected)
    assert as_rows(layer, x[:, 0], real).shape == (2, 4)  # what a pooler is given holds one position of each text
    sums = sum_over_inputs(layer, [x], {"layer": layer}, lambda x: x.sum(0), real_positions=lambda batch: real)
    torch.testing.assert_close(sums["layer"], expected.sum(0))


def test_layers_are_grouped_by_input():
    layers = {name: nn.Linear(2, 2) for name in ("out", "v", "k", "q")}

    def attention(x):
        mixed = layers["q"](x) + layers["k"](x) + layers["v"](x)
        return layers["out"](mixed) + layers["q"](mixed)

    assert in_order_of_use(attention, torch.ones(1, 2), layers) == [["q", "k", "v"], ["out"]]
