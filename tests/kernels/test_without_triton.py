"""What runs around CUDA kernels where Triton is not installed, as beside a PyTorch of one's own."""

import builtins

import pytest
import torch
from sparsefront_kernels import operands
from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.gathered import sm90
from sparsefront_kernels.operands import Epilogue
from sparsefront_kernels.pointwise import contiguous_transpose, epilogue
from sparsefront_kernels.pointwise.op import transposed


@pytest.fixture(autouse=True)
def no_triton(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.split(".")[0] == "triton" or name.endswith(("triton_spmm", "triton_epilogue")):
            raise ImportError("no module named triton")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(operands, "TRITON_IS_INSTALLED", False)
    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.parametrize("m", [8, 13])
def test_rows_become_columns_and_columns_rows(m):
    """Before and after a feature-major kernel that takes row-major X and gives row-major Y."""
    x = torch.randn(m, 24)
    assert torch.equal(operands.aligned_by_input(x, feature_major=False)[:, :m], x.t())
    y = torch.empty(m, 24)
    operands.deliver(torch.nn.functional.pad(x.t(), (0, -m % 8)), y, feature_major=False)
    assert torch.equal(y, x)
    assert torch.equal(contiguous_transpose(x), x.t()) and torch.equal(transposed(x), x.t())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kept", [0, 3])
def test_computed_outputs_become_rows(dtype, kept):
    """Also an infinity of one that is computed, which no other output sees."""
    index = torch.tensor([2, -1, 0, -1, 1] if kept else [-1] * 5, dtype=torch.int32)
    sums = torch.randn(kept, 8).to(dtype)
    sums[:1, 0] = torch.inf
    bias, residual = torch.randn(5), torch.randn(5, 7).to(dtype).t()
    y = torch.full((7, 5), torch.nan, dtype=dtype)
    sm90._expand(sums, index, y, Epilogue(bias, "gelu", residual))
    whole = torch.zeros(5, 7)
    for output, row in enumerate(index.tolist()):
        if row >= 0:
            whole[output] = sums[row, :7].float()
    torch.testing.assert_close(y, with_epilogue(whole.t(), bias, "gelu", residual).to(dtype))


def test_the_epilogue():
    sums, bias, residual = torch.randn(6, 9).half(), torch.randn(6), torch.randn(9, 6).half().t()
    y = epilogue(sums, bias, "relu", residual)
    expected = with_epilogue(sums.t().float(), bias, "relu", residual.t()).t().half()
    assert y.is_contiguous()
    torch.testing.assert_close(y, expected)
