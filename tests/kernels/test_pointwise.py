"""The change of layout and the epilogue that no product fused."""

import pytest
import torch
from sparsefront_kernels.epilogue import ACTIVATIONS, with_epilogue
from sparsefront_kernels.pointwise import contiguous_transpose, epilogue, transposed


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 515), (9, 30)])
def test_epilogue(rows, columns, activation, device):
    sums = torch.randn(rows, columns + 2, device=device)[:, :columns]
    bias, residual = torch.randn(rows, device=device), torch.randn(columns, rows, device=device).t()
    for parts in ((bias, residual), (bias, None), (None, residual), (None, None)):
        expected = with_epilogue(
            sums.double().t(), parts[0], activation, None if parts[1] is None else parts[1].t()
        ).t()
        y = epilogue(sums, parts[0], activation, parts[1])
        assert y.is_contiguous() and torch.allclose(y.double(), expected, atol=1e-5)


def test_epilogue_rounds_once(device):
    sums, bias = torch.randn(6, 40, device=device).half(), torch.randn(6, device=device)
    residual = torch.randn(6, 40, device=device).half()
    expected = with_epilogue(sums.float().t(), bias, "gelu", residual.t()).t().half()
    # where the GELU for 16 bits errs by 3e-5 the rounding may go the other way
    y = epilogue(sums, bias, "gelu", residual).float()
    assert torch.allclose(y, expected.float(), atol=1e-4, rtol=torch.finfo(torch.float16).eps)
    assert (y == expected.float()).float().mean() > 0.8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gelu_in_16_bits(device, dtype):
    """To 3e-5 before it is rounded (the interpreter cuts bfloat16 off), also where erf has long been 1 or -1."""
    sums = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-3e4, 3e4, 0.0])]).to(device, dtype)[None]
    expected = torch.nn.functional.gelu(sums.double())
    error = (epilogue(sums, None, "gelu", None).double() - expected).abs()
    rounding = torch.finfo(dtype).eps / (1 if device.type == "cpu" else 2)
    assert (error <= 4e-5 + rounding * expected.abs()).all()


def test_misfitting_operands_are_rejected():
    sums = torch.randn(4, 6)
    with pytest.raises(ValueError, match=r"bias must be a float \[4\]"):
        epilogue(sums, torch.ones(6), "none", None)
    with pytest.raises(ValueError, match="residual must be"):
        epilogue(sums, None, "none", sums.t())
    with pytest.raises(ValueError, match="activation 'tanh'"):
        epilogue(sums, None, "tanh", None)


def test_the_ops_are_what_they_say(device):
    x, bias = torch.randn(8, 6, device=device), torch.randn(8, device=device)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(epilogue.overload, (x, bias, "gelu", x), test_utils=checks)
    torch.library.opcheck(transposed.overload, (x,), test_utils=checks)
    assert torch.equal(transposed(x), x.t()) and transposed(x).is_contiguous()


@pytest.mark.parametrize("shape", [(5, 70), (1, 9), (9, 1), (130, 64), (0, 4)])
def test_transpose_copies_what_lies_otherwise(shape, device):
    rows = torch.randn(shape, device=device)
    columns = contiguous_transpose(rows)
    assert torch.equal(columns, rows.t()) and columns.is_contiguous()
    again = contiguous_transpose(columns.t())
    assert again.data_ptr() == columns.data_ptr()
    part = torch.randn(shape[0], 2 * shape[1], device=device)[:, : shape[1]]
    assert torch.equal(contiguous_transpose(part), part.t()) and contiguous_transpose(part).is_contiguous()
    assert torch.equal(contiguous_transpose(part.t()), part) and contiguous_transpose(part.t()).is_contiguous()


def test_gradients(device):
    sums, residual = (torch.randn(4, 6, device=device, requires_grad=True) for _ in range(2))
    bias = torch.randn(4, device=device, requires_grad=True)
    dy = torch.randn(4, 6, device=device)
    ours = torch.autograd.grad(epilogue(sums, bias, "gelu", residual), (sums, bias, residual), dy)
    theirs = torch.autograd.grad(with_epilogue(sums.t(), bias, "gelu", residual.t()).t(), (sums, bias, residual), dy)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    (gradient,) = torch.autograd.grad(transposed(sums), sums, dy.t())
    assert torch.equal(gradient, dy)
