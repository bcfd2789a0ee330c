"""Weights as matrices and back."""

import pytest
import torch

from sparsefront.masks.weight_view import as_matrix, like_weight


def test_linear_is_itself():
    weight = torch.nn.Linear(6, 4).weight
    assert as_matrix(weight).shape == (4, 6) and as_matrix(weight).data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolution_and_back(layout):
    weight = torch.randn(5, 3, 2, 4).to(memory_format=layout)
    matrix = as_matrix(weight)
    assert matrix.shape == (5, 24)
    assert matrix[2, 1 * 8 + 1 * 4 + 3] == weight[2, 1, 1, 3]
    assert torch.equal(like_weight(matrix, weight), weight)


def test_the_matrix_gives_the_convolution_as_a_product():
    convolution = torch.nn.Conv2d(3, 5, (2, 4), bias=False)
    x = torch.randn(1, 3, 6, 8)
    columns = torch.nn.functional.unfold(x, (2, 4))[0]  # [C_in*kh*kw, pixels]
    torch.testing.assert_close((as_matrix(convolution.weight) @ columns).flatten(), convolution(x).flatten())


def test_a_vector_is_no_weight():
    with pytest.raises(ValueError, match=r"\[3\]"):
        as_matrix(torch.zeros(3))
