"""The epilogue's reference against its own definition."""

import pytest
import torch
from sparsefront_kernels.epilogue import ACTIVATIONS, check_activation, with_epilogue


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_order_of_bias_activation_and_residual(activation):
    sums, bias, residual = torch.randn(5, 7), torch.randn(7), torch.randn(5, 7)
    expected = ACTIVATIONS[activation](sums + bias) + residual
    assert torch.equal(with_epilogue(sums, bias, activation, residual), expected)
    assert torch.equal(with_epilogue(sums, None, activation, None), ACTIVATIONS[activation](sums))


def test_unknown_activation_is_named():
    with pytest.raises(ValueError, match="'swish' is not one of none, relu, gelu, gelu_tanh"):
        check_activation("swish")
