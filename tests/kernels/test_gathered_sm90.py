"""The Hopper kernel: what it does not support, how X reaches it, and every launch of its space.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from in_layout import every_layout, in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.common.operands import aligned_by_input
from sparsefront_kernels.gathered.sm90 import SPACE, launch_gathered_sm90
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90
from torch._subclasses.fake_tensor import FakeTensorMode

ENTRIES = tuple(kernel.name for kernel in every_layout() if kernel.name.startswith("gathered_sm90"))


class TestWithoutGPU:
    def test_unsupported_problems(self):
        stored = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=24)
        problem = {"m": 8, "k": 8, "n": 48, "device": torch.device("cpu")}
        for name in ENTRIES:
            layout = in_layout(name).layout
            assert "not torch.float32" in in_layout(name).unsupported_reason(
                stored, Problem(dtype=torch.float32, layout=layout, **problem)
            )
            half = Problem(dtype=torch.float16, layout=layout, **problem)
            assert "not tiles of 24 outputs" in in_layout(name).unsupported_reason(stored, half)
            stored_64 = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=64)
            assert "needs a CUDA device" in in_layout(name).unsupported_reason(stored_64, half)

    @pytest.mark.parametrize("kind", ["plain", "inside_nan", "transposed"])
    @pytest.mark.parametrize("m", [8, 13])
    def test_x_reaches_the_kernel_aligned(self, kind, m, activations):
        x = activations(Problem(m, 24, 1, torch.float16, "cpu", "feature_major"), kind)
        by_input = aligned_by_input(x, feature_major=True)
        assert by_input.stride(1) == 1 and by_input.data_ptr() % 16 == 0 and by_input.stride(0) % 8 == 0
        assert by_input.shape[1] % 8 == 0 and torch.equal(by_input[:, :m], x)
        assert (by_input.data_ptr() == x.data_ptr()) == (kind == "plain" and m == 8)

    @pytest.mark.parametrize("name", ENTRIES)
    def test_fake_kernel_gives_the_shape(self, name):
        kernel = in_layout(name)
        problem = Problem(5, 8, 64, torch.float32, "cpu", kernel.layout)
        packed = pack_for_sm90(
            FORMATS["gathered"].from_dense(torch.randn(64, 8), torch.ones(64, 8, dtype=torch.bool), tile=64)
        )
        with FakeTensorMode(allow_non_fake_inputs=True):
            y = kernel.run(torch.empty(problem.x_shape), packed, None)
        assert y.shape == problem.y_shape


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("tile", [16, 32, 64, 128, 256])
    def test_every_launch_of_the_space(self, tile, assert_close):
        torch.manual_seed(tile)
        mask = (torch.rand(-(-640 // tile), 700, device="cuda") < 0.4).repeat_interleave(tile, 0)[:640]
        stored = FORMATS["gathered"].from_dense(
            torch.randn(640, 700, device="cuda", dtype=torch.float16), mask, tile=tile
        )
        packed = pack_for_sm90(stored)
        bias = torch.randn(640, device="cuda")
        x = torch.randn(700, 1032, device="cuda", dtype=torch.float16)
        expected = stored.to_dense().double() @ x.double() + bias.double()[:, None]
        for launch in SPACE:
            y = torch.full((640, 1032), torch.nan, device="cuda", dtype=torch.float16)
            launch_gathered_sm90(x, y, packed, bias=bias, launch=launch)
            assert_close(y, expected)

    def test_many_steps_and_items(self, assert_close):
        """Rings that go round often, blocks with several work tiles of different length."""
        mask = (torch.rand(24, 5000, device="cuda") < torch.rand(24, 1, device="cuda")).repeat_interleave(128, 0)
        stored = FORMATS["gathered"].from_dense(
            torch.randn(3072, 5000, device="cuda", dtype=torch.float16), mask, tile=128
        )
        x = torch.randn(5000, 4096, device="cuda", dtype=torch.float16)
        y = in_layout("gathered_sm90_feature_major").run(x, pack_for_sm90(stored), None)
        assert_close(y, stored.to_dense().double() @ x.double())

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        mask = (torch.rand(8, 2000, device="cuda") < 0.3).repeat_interleave(64, 0)
        stored = FORMATS["gathered"].from_dense(
            torch.randn(512, 2000, device="cuda", dtype=torch.float16), mask, tile=64
        )
        packed = pack_for_sm90(stored)
        x = torch.randn(2000, 512, device="cuda", dtype=torch.float16)
        for launch in SPACE:
            first = torch.empty(512, 512, device="cuda", dtype=torch.float16)
            launch_gathered_sm90(x, first, packed, launch=launch)
            for _ in range(10):
                again = torch.full_like(first, torch.nan)
                launch_gathered_sm90(x, again, packed, launch=launch)
                assert torch.equal(first, again), launch
