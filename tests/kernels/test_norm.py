"""LayerNorm of feature-major activations: against PyTorch's own, any strides, held and not held, compiled."""

import pytest
import torch
from sparsefront_kernels.norm import (
    add_layer_norm_columns,
    add_layer_norm_columns_reference,
    layer_norm_columns,
    layer_norm_columns_reference,
)
from torch.nn.functional import layer_norm

SHAPES = [(1, 1), (48, 130), (5000, 9)]  # the last is read three times


def expected(x, weight, bias, eps):
    d = x.shape[0]
    parts = [None if part is None else part.double() for part in (weight, bias)]
    return layer_norm(x.double().t(), (d,), *parts, eps).t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("d", "m"), SHAPES)
@pytest.mark.parametrize("row_major", [False, True], ids=["feature_major", "row_major"])
def test_columns_are_normalized(d, m, row_major, dtype, device):
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


def test_large_mean_leaves_the_variance(device):
    x = torch.randn(256, 16, device=device) + 1000
    y = layer_norm_columns(x, None, None, 1e-12)
    assert torch.allclose(y.double(), expected(x, None, None, 1e-12), atol=2e-3)


def test_misfitting_operands_are_rejected():
    x = torch.randn(8, 4)
    with pytest.raises(ValueError, match=r"weight must be a float \[8\]"):
        layer_norm_columns(x, torch.ones(4), None, 1e-6)
    with pytest.raises(ValueError, match=r"x must be"):
        layer_norm_columns(x[0], None, None, 1e-6)


def test_the_op_is_what_it_says(device):
    x, weight = torch.randn(8, 6, device=device), torch.randn(8, device=device)
    torch.library.opcheck(
        layer_norm_columns.overload, (x, weight, None, 1e-6), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("keep_sums", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("d", "m"), SHAPES)
def test_what_is_added_first(d, m, dtype, keep_sums, device):
    x = torch.randn(d, m + 3, device=device, dtype=dtype)[:, :m]
    residual = torch.randn(m, d, device=device, dtype=dtype).t()
    weight, bias, x_bias = torch.randn(d, device=device, dtype=dtype), *torch.randn(2, d, device=device)
    limit = {torch.float32: 5e-5, torch.bfloat16: 3e-2}[dtype]
    for added in (x_bias, None):
        total = x.double() + residual.double() + (0 if added is None else added.double()[:, None])
        truth = expected(total.to(dtype), weight, bias, 1e-6)
        y, sums = add_layer_norm_columns(x, added, residual, weight, bias, 1e-6, keep_sums)
        for normed in (y, add_layer_norm_columns_reference(x, added, residual, weight, bias, 1e-6)[0]):
            assert normed.dtype == dtype and normed.is_contiguous()
            assert torch.allclose(normed.double(), truth, rtol=limit, atol=limit)
        assert sums.shape == ((d, m) if keep_sums else (0, m))
        if keep_sums:
            assert torch.allclose(sums.double(), total, rtol=limit, atol=limit)


def test_residual_of_another_shape():
    with pytest.raises(ValueError, match=r"residual must be torch.float32 \[8, 4\]"):
        add_layer_norm_columns(torch.randn(8, 4), None, torch.randn(4, 8), None, None, 1e-6, False)


@pytest.mark.parametrize("keep_sums", [False, True])
def test_gradients_pass_through_the_sum(keep_sums, device):
    x, residual = (torch.randn(8, 6, device=device, requires_grad=True) for _ in range(2))
    weight, bias, x_bias = (torch.randn(8, device=device, requires_grad=True) for _ in range(3))
    dy, dsums = torch.randn(2, 8, 6, device=device)
    leaves = (x, x_bias, residual, weight, bias)
    y, sums = add_layer_norm_columns(*leaves, 1e-6, keep_sums)
    total = x + x_bias[:, None] + residual
    truth = layer_norm(total.t(), (8,), weight, bias, 1e-6).t()
    ours = torch.autograd.grad([y, sums] if keep_sums else [y], leaves, [dy, dsums] if keep_sums else [dy])
    theirs = torch.autograd.grad([truth, total] if keep_sums else [truth], leaves, [dy, dsums] if keep_sums else [dy])
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    operands = tuple(part.detach() for part in leaves)
    torch.library.opcheck(
        add_layer_norm_columns.overload, (*operands, 1e-6, keep_sums), test_utils=("test_schema", "test_faketensor")
    )
