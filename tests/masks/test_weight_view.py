"""Weights as matrices and back."""

import pytest
import torch
import torch.nn.functional as F

from sparsefront.masks.weight_view import as_matrix, like_weight, pixel_rows
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.n_m import NM

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_convolution_and_back(layout):
    """Tap by tap, the input channels of one tap next to each other."""
    weight = torch.randn(5, 3, 2, 4).to(memory_format=layout)
    matrix = as_matrix(weight)
    assert matrix.shape == (5, 24)
    by_loops = [[weight[o, c, i, j] for i in range(2) for j in range(4) for c in range(3)] for o in range(5)]
    assert torch.equal(matrix, torch.tensor(by_loops))
    back = like_weight(matrix, weight)
    assert torch.equal(back, weight)
    assert back.is_contiguous(memory_format=layout)  # as the weight lies: so are masks, which are applied at every step
    assert (matrix.data_ptr() == weight.data_ptr()) == (layout == torch.channels_last)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"stride": (2, 2), "padding": (2, 2), "dilation": (2, 2)},
        {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)},
        {},
    ],
    ids=str,
)
def test_pixel_rows_give_the_convolution(settings, layout):
    images = torch.randn(2, 4, 9, 8).to(memory_format=layout)
    weight = torch.randn(6, 4, 3, 3).to(memory_format=layout)
    y = F.conv2d(images, weight, **settings)  # [2, 6, height, width]
    found = pixel_rows(images, (3, 3), **settings)
    torch.testing.assert_close(found @ as_matrix(weight).t(), y.permute(0, 2, 3, 1).flatten(0, 2), atol=1e-4, rtol=1e-4)


def test_pointwise_rows_are_no_copy():
    images = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last)
    rows = pixel_rows(images, (1, 1))
    assert torch.equal(rows, images.permute(0, 2, 3, 1).reshape(30, 4)) and rows.data_ptr() == images.data_ptr()
    strided = pixel_rows(images, (1, 1), stride=(2, 2))
    assert torch.equal(strided, images[:, :, ::2, ::2].permute(0, 2, 3, 1).reshape(12, 4))


def test_rows_pass_a_gradient_on():
    images = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pixel_rows(x, (3, 3), padding=(1, 1), stride=(2, 2)), images)


def test_groups_span_taps():
    """It fits where it divides K: a first layer of 3 channels is still pruned."""
    weight = torch.randn(8, 3, 4, 4)  # K = 48
    assert NM(2, 4).unsupported_reason(tuple(as_matrix(weight).shape), 0.5) is None
    assert BlockWise(64).unsupported_reason(tuple(as_matrix(weight).shape), 0.5) is not None


def test_a_vector_is_no_weight():
    with pytest.raises(ValueError, match=r"\[3\]"):
        as_matrix(torch.zeros(3))
