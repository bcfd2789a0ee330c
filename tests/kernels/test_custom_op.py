"""Ops of the library as PyTorch sees them."""

import subprocess
import sys

import pytest
import torch
from sparsefront_kernels.custom_op import CustomOp, custom_op
from torch import Tensor

FIRST_CALLS = """
import sys, torch
from sparsefront_kernels import FORMATS, SparseLinear, entry
from sparsefront_kernels.norm.rows import norm_rows

x = torch.randn(3, 64)
stored = FORMATS["gathered"].from_dense(torch.randn(64, 64), torch.ones(64, 64, dtype=torch.bool), tile=64)
SparseLinear(entry("gathered_reference"), stored, None)(norm_rows(x, None, None, None, None, 1e-5)[0])
print(*(name for name in ("torch._dynamo", "torch._inductor", "sympy", "triton") if name in sys.modules))
"""


@custom_op("test_doubled")
def doubled(x: Tensor, times: int = 1) -> Tensor:
    """x, doubled some times."""
    return x * 2**times


@doubled.register_fake
def _(x, times=1):
    return torch.empty_like(x)


def test_a_first_forward_imports_no_compiler():
    """`torch.library.custom_op` imported Dynamo at its first call, 3 s of the first forward of a process."""
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_op_is_one_node():
    x = torch.randn(3)
    assert doubled.__doc__ == "x, doubled some times."
    assert torch.equal(doubled(x, times=2), 4 * x)
    assert torch.equal(torch.ops.sparsefront.test_doubled(x), 2 * x)
    torch.library.opcheck(doubled.overload, (x,), test_utils=("test_schema", "test_faketensor"))


def test_gradient_is_registered_or_an_error():
    x = torch.randn(3, requires_grad=True)
    y = doubled(x)
    with pytest.raises(RuntimeError, match="sparsefront::test_doubled has no gradient"):
        y.sum().backward()
    scaled = CustomOp("test_scaled", lambda x, by: x * by, "(Tensor x, float by) -> Tensor")
    scaled.register_autograd(
        lambda ctx, dy: (dy * ctx.by, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1])
    )
    scaled(x, 3.0).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))
    with torch.no_grad():
        assert not scaled(x, 3.0).requires_grad
