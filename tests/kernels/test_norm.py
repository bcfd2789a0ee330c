"""LayerNorm of feature-major activations: against PyTorch's own, any strides, held and not held, compiled."""

import pytest
import torch
from sparsefront_kernels.norm import layer_norm_columns, layer_norm_columns_reference
from torch.nn.functional import layer_norm

SHAPES = [(1, 1), (64, 5), (48, 130), (768, 33), (5000, 9)]  # the last is read three times


def expected(x, weight, bias, eps):
    d = x.shape[0]
    parts = [None if part is None else part.double() for part in (weight, bias)]
    return layer_norm(x.double().t(), (d,), *parts, eps).t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("d", "m"), SHAPES)
@pytest.mark.parametrize("row_major", [False, True], ids=["feature_major", "row_major"])
def test_columns_are_normalised(d, m, row_major, dtype, device):
    x = (
        (torch.randn(m, d, device=device).t() + 3).to(dtype)
        if row_major
        else torch.randn(d, m + 3, device=device).to(dtype)
    )
    x = x[:, :m]
    weight, bias = torch.randn(d, device=device, dtype=dtype), torch.randn(d, device=device)
    limit = 5e-5 if dtype == torch.float32 else 4e-3
    for parts in ((weight, bias), (weight, None), (None, None)):
        truth = expected(x, *parts, 1e-6)
        for function in (layer_norm_columns, layer_norm_columns_reference):
            y = function(x, *parts, 1e-6)
            assert y.dtype == dtype and y.is_contiguous()
            assert torch.allclose(y.double(), truth, rtol=limit, atol=limit)


def test_a_large_mean_does_not_spoil_the_variance(device):
    x = torch.randn(256, 16, device=device) + 1000
    y = layer_norm_columns(x, None, None, 1e-12)
    assert torch.allclose(y.double(), expected(x, None, None, 1e-12), atol=2e-3)


def test_operands_that_do_not_fit_are_rejected():
    x = torch.randn(8, 4)
    with pytest.raises(ValueError, match=r"weight must be a float \[8\]"):
        layer_norm_columns(x, torch.ones(4), None, 1e-6)
    with pytest.raises(ValueError, match=r"x must be"):
        layer_norm_columns(x[0], None, None, 1e-6)


def test_the_op_is_what_it_says(device):
    x, weight = torch.randn(8, 6, device=device), torch.randn(8, device=device)
    torch.library.opcheck(layer_norm_columns, (x, weight, None, 1e-6), test_utils=("test_schema", "test_faketensor"))


def test_gradients_are_those_of_layer_norm(device):
    x = torch.randn(8, 6, device=device, requires_grad=True)
    weight, bias = (torch.randn(8, device=device, requires_grad=True) for _ in range(2))
    dy = torch.randn(8, 6, device=device)
    ours = torch.autograd.grad(layer_norm_columns(x, weight, bias, 1e-6), (x, weight, bias), dy)
    theirs = torch.autograd.grad(layer_norm(x.t(), (8,), weight, bias, 1e-6).t(), (x, weight, bias), dy)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
