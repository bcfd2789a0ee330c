"""The gathered product in TF32: only where PyTorch's own products may be rounded so, and within its tolerance."""

import pytest
import torch
from in_layout import InLayout
from sparsefront_kernels import Problem, entry
from sparsefront_kernels.gathered.triton import (
    pack_for_triton,
)
from sparsefront_kernels.problem import LAYOUTS

KERNELS = {layout: InLayout(entry("gathered_triton_tf32"), layout) for layout in LAYOUTS}
TOLERANCE = 1e-3


@pytest.fixture
def allowed():
    """As a user allows it for PyTorch's own products."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def error(y, expected):
    return float(
        torch.nan_to_num(torch.linalg.norm(y.double() - expected) / torch.linalg.norm(expected), nan=torch.inf)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unsupported_unless_the_user_allows_it(layout, cases, device, allowed):
    kernel, stored = KERNELS[layout], cases["gathered-uneven"].build()
    problem = Problem(8, stored.shape[1], stored.shape[0], torch.float32, device, layout)
    assert kernel.dtype_name == "tf32" and kernel.unsupported_reason(stored, problem) is None
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert "fp32_precision" in kernel.unsupported_reason(stored, problem)
    half = Problem(8, stored.shape[1], stored.shape[0], torch.float16, device, layout)
    assert "takes float32, not torch.float16" in kernel.unsupported_reason(stored, half)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weight", ["gathered-uneven", "gathered-128", "gathered-odd-tile", "gathered-pruned"])
def test_product(layout, weight, cases, device, activations, expected_product, poisoned_memory, allowed):
    stored = cases[weight].build().to(device)
    n, k = stored.shape
    problem = Problem(33, k, n, torch.float32, device, layout)
    x, bias = activations(problem, "inside_nan"), torch.randn(n, device=device)
    with poisoned_memory():
        y = KERNELS[layout].run(x, pack_for_triton(stored), bias)
    assert tuple(y.shape) == problem.y_shape
    assert error(y, expected_product(x, stored, bias, layout)) <= TOLERANCE
