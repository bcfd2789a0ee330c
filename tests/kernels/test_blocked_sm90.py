"""The blocked kernel on Hopper: what it does not support, how operands reach it, its launches, and on a GPU every one of them.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from in_layout import in_layout
from sparsefront_kernels import FORMATS, Problem, find
from sparsefront_kernels.blocked import sm90
from sparsefront_kernels.operands import is_loadable

HALF = torch.float16


def stored_blocks(block, rows, columns, density=0.5, device="cpu", dtype=HALF):
    kept = torch.rand(rows, columns, device=device) < density
    mask = kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return FORMATS["blocked"].from_dense(torch.randn(mask.shape, device=device, dtype=dtype), mask, block=block)


def problem_of(stored, m, layout="row_major", dtype=HALF, device="cpu"):
    return Problem(m, stored.shape[1], stored.shape[0], dtype, device, layout)


class TestWithoutGPU:
    def test_small_blocks_go_to_gathered(self):
        small, large = stored_blocks((32, 32), 2, 3), stored_blocks((64, 64), 2, 3)
        reasons = [find(stored, problem_of(stored, 1025)).unsupported for stored in (small, large)]
        assert "blocked_sm90" in reasons[1]["blocked_gathered_sm90"]
        few_rows = find(large, problem_of(large, 1024)).unsupported
        assert "needs a CUDA device" in few_rows["blocked_gathered_sm90"], "timing decides"
        assert "needs a CUDA device" in reasons[0]["blocked_gathered_sm90"]
        assert "32x32" in reasons[0]["blocked_sm90"]

    @pytest.mark.parametrize("kind", ["plain", "inside_nan", "transposed", "unaligned"])
    @pytest.mark.parametrize("feature_major", [False, True])
    @pytest.mark.parametrize("box", [64, 16])
    @pytest.mark.parametrize("m", [13, 16])
    def test_x_reaches_the_kernel_aligned(self, kind, feature_major, box, m, activations):
        layout = "feature_major" if feature_major else "row_major"
        x = activations(Problem(m, 128, 64, HALF, "cpu", layout), kind)
        operand, by_input = sm90._x_operand(x, feature_major=feature_major, box=box)
        assert is_loadable(operand) and not (by_input and box == 16)
        rows = operand.t()[:m] if by_input else operand
        assert torch.equal(rows, x.t() if feature_major else x)
        if kind == "plain" and not feature_major:
            assert operand.data_ptr() == x.data_ptr(), "row-major X is read where it is"

    def test_rows_that_overlap_are_copied(self):
        x = torch.randn(1, 64, dtype=HALF).expand(5, 64)
        operand, by_input = sm90._x_operand(x, feature_major=False, box=64)
        assert not by_input and operand.stride(0) == 64 and torch.equal(operand, x)


@pytest.mark.parametrize("m", [1, 13, 16])
def test_residual_in_aligned_rows(m):
    """A feature-major Y is stored where it lies, whatever M is; what is added to it is loaded 16 bytes at a time."""
    residual = torch.randn(64, m, dtype=HALF)
    operand = sm90.residual_operand(residual)
    assert torch.equal(operand, residual) and operand.stride(0) % 8 == 0 and operand.stride(1) == 1
    assert (operand.data_ptr() == residual.data_ptr()) == (m == 16)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    def test_infinity_stays_in_its_block(self):
        """Zeros that fill up a list of boxes meet no X, and halves that do not keep a block do not multiply by it."""
        stored = stored_blocks((64, 16), 6, 9, 0.5, "cuda")
        kernel, dense = in_layout("blocked_sm90"), stored.to_dense()
        x = torch.randn(70, stored.shape[1], device="cuda", dtype=HALF)
        unkept = (dense != 0).view(6, 64, 9, 16).any(dim=3).any(dim=1).logical_not()
        row, column = unkept.nonzero()[0].tolist()
        x[:, column * 16] = torch.inf
        y = kernel.run(x, kernel.pack(stored), None)
        assert y[:, row * 64 : row * 64 + 64].isfinite().all()
