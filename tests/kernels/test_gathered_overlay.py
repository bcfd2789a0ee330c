"""`gathered_overlay_composed`: the kernels that it chooses, and its product by those for any GPU, which run here on the CPU."""

import pytest
import torch
from sparsefront_kernels import Problem, entry
from sparsefront_kernels.device_support import triton_unsupported_reason
from sparsefront_kernels.gathered_overlay import entries as composed

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


def test_kernels_of_the_gpu_at_hand(stored, monkeypatch):
    """Those for compute capability 9.0 where they take the tiles, in the dtype of the problem."""
    n, k = stored.shape
    reasons = {composed.GATHERED_SM90: lambda dtype: None if dtype == torch.float16 else "takes 16 bits"}
    monkeypatch.setattr(
        composed, "_unsupported_by", lambda kernels, weight, problem: reasons[kernels[0]](problem.dtype)
    )
    reasons[composed.GATHERED_TRITON] = lambda dtype: "not Triton"
    for dtype, reason in ((torch.float16, None), (torch.float32, "not Triton")):
        assert KERNEL.unsupported(stored, Problem(3, k, n, dtype, "cuda")) == reason


def test_unsupported_where_either_part_is(stored):
    n, k = stored.shape
    reason = KERNEL.unsupported_reason(stored, Problem(3, k, n, torch.float32, "cpu"))
    assert reason.startswith("needs a CUDA device")
