"""What follows a product in low precision: one pass, as Triton and as plain operations."""

import pytest
import torch
from random_problems import TOLERANCE, fault_of
from sparsefront_kernels.epilogue import with_epilogue
from sparsefront_kernels.quantized.epilogue import finished, scaled_epilogue


def expected(sums, rows, outputs, factor, bias, activation, residual):
    scaled = sums.double() * factor * (1 if rows is None else rows) * (1 if outputs is None else outputs.t())
    return with_epilogue(scaled, bias, activation, residual)


@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize("kind", [torch.int32, torch.float32])
def test_triton_and_plain_operations_agree(by_output, kind, device):
    m, n = 7, 530
    for dtype, given in ((torch.float16, True), (torch.float32, False)):
        sums = (torch.randn(n, m, device=device).t() if by_output else torch.randn(m, n, device=device)) * 100
        sums = sums.to(kind)
        rows, outputs = torch.rand(m, 1, device=device), torch.rand(n, 1, device=device) / 100
        bias, residual = torch.randn(n, device=device), torch.randn(m, n, device=device).to(dtype)
        arguments = (rows, outputs, 0.5, bias, "gelu", residual) if given else (None, None, 1.0, None, "none", residual)
        y = scaled_epilogue(sums, *arguments, dtype)
        assert y.stride() == sums.stride() and y.dtype == dtype
        assert not fault_of(y, expected(sums, *arguments), TOLERANCE[dtype])
        rows, outputs, factor, bias, activation, residual = arguments
        scales = {"row_scales": rows, "output_scales": outputs, "factor": factor}
        plain = finished(sums, bias, activation, residual, dtype, **scales)
        assert not fault_of(plain, expected(sums, *arguments), TOLERANCE[dtype])


def test_nothing_to_do():
    sums = torch.randn(3, 5)
    assert finished(sums, None, "none", None, torch.float32) is sums
    with pytest.raises(ValueError, match="the residual must be torch.float16"):
        finished(sums, None, "none", torch.ones(3, 5), torch.float16)
    with pytest.raises(ValueError, match="activation 'tanh'"):
        finished(sums, None, "tanh", None, torch.float16)


def test_the_op_is_what_it_says(device):
    sums, scales = torch.randn(4, 6, device=device), torch.rand(4, 1, device=device)
    for one in (sums, torch.randn(6, 4, device=device).t()):
        arguments = (one, scales, None, 2.0, None, "relu", sums.half(), torch.float16)
        torch.library.opcheck(scaled_epilogue.overload, arguments, test_utils=("test_schema", "test_faketensor"))
