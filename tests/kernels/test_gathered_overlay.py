"""`gathered_overlay_composed`: the kernels that it chooses, and its product by those for any GPU, which run here on the CPU."""

import pytest
import torch
from sparsefront_kernels import Problem, entry
from sparsefront_kernels.device_support import triton_unsupported_reason

KERNEL = entry("gathered_overlay_composed")


@pytest.fixture
def stored(cases):
    return cases["gathered_overlay"].build()


@pytest.mark.parametrize("layout", KERNEL.layouts)
@pytest.mark.parametrize("with_bias", [False, True])
def test_both_parts_are_added(stored, layout, with_bias, activations, expected_product, assert_close):
    n, k = stored.shape
    problem = Problem(6, k, n, torch.float32, "cpu", layout)
    if reason := triton_unsupported_reason(stored, problem):
        pytest.skip(reason)
    x, bias = activations(problem), torch.randn(n) if with_bias else None
    y = KERNEL.run(x, KERNEL.pack(stored), bias, layout=layout)
    assert y.shape == problem.y_shape
    assert_close(y, expected_product(x, stored, bias, layout))
